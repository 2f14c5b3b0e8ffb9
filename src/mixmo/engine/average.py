"""An exponential average of the weights over the last steps, which is scored in the place of the last weights."""

import copy
import math

import torch

from mixmo.models.network import Ensemble

EVERY = 5  # steps between two updates: often enough for a horizon of hundreds of steps, and a fifth of the cost


class Average:
    """A network that follows another one's weights and batch statistics with this horizon, in steps."""

    def __init__(self, net: Ensemble, horizon: float) -> None:
        self.net: Ensemble = copy.deepcopy(net).requires_grad_(False)
        self.horizon = horizon
        self.pairs = [
            (into, source)
            for into, source in zip(self.net.state_dict().values(), net.state_dict().values(), strict=True)
            if into.is_floating_point()
        ]

    def update(self, step: int) -> None:
        """After `step` steps. Early on the average is over what there is, so that the first weights are forgotten."""
        if step % EVERY == 0:
            horizon = min(self.horizon, 0.1 * step + EVERY)
            into, source = (list(tensors) for tensors in zip(*self.pairs, strict=True))
            torch._foreach_lerp_(into, source, 1 - math.exp(-EVERY / horizon))
