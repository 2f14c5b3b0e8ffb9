"""Exponential moving average of the weights, which is scored instead of the last weights."""

import copy
import math

import torch

from mixmo.models.network import Ensemble

EVERY = 5  # steps between two updates: often enough for a horizon of hundreds of steps, and a fifth of the cost


class Average:
    def __init__(self, net: Ensemble, horizon: float) -> None:
        self.net: Ensemble = copy.deepcopy(net).requires_grad_(False)
        self.horizon = horizon
        self.pairs = [
            (into, source)
            for into, source in zip(self.net.state_dict().values(), net.state_dict().values(), strict=True)
            if into.is_floating_point()
        ]

    def update(self, step: int) -> None:
        """Update after `step` steps. Early on the horizon is shorter, so that the initial weights are forgotten."""
        if step % EVERY == 0:
            horizon = min(self.horizon, 0.1 * step + EVERY)
            into, source = (list(tensors) for tensors in zip(*self.pairs, strict=True))
            torch._foreach_lerp_(into, source, 1 - math.exp(-EVERY / horizon))
