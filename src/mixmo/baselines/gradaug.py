"""GradAug: narrower sub-networks are trained to predict as the whole network, on smaller images (Yang et al., 2020).

    L = CE(y, f(x)) + sum_i KL(softmax f(x) || softmax f_{w_i}(resize x))

f_w uses the first w of the channels of every layer. As in its authors' code for wide networks there are three of them:
one of the smallest width 0.8, two of widths drawn from 0.8 to 1, each on the batch resized to 1, 7/8 or 3/4 of its
side; no gradient flows through the target; sub-networks normalise by the batch and leave the running statistics alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from mixmo.mixing.types import Mix
from mixmo.models import Network

SMALLEST = 0.8
SIDES = (1.0, 7 / 8, 3 / 4)


class Subnet(NamedTuple):
    """One sub-network of a step."""

    width: float  # share of the channels
    side: float  # share of the image's side


def draw_subnets(count: int, generator: Generator) -> tuple[Subnet, ...]:
    """Draw widths and image sizes, on the host: they are shapes."""
    random = np.random.default_rng(generator.initial_seed())
    widths = [SMALLEST, *random.uniform(SMALLEST, 1, count - 1)]
    return tuple(Subnet(float(w), SIDES[random.integers(len(SIDES))]) for w in sorted(widths, reverse=True))


def subnet_loss(net: Network, mix: Mix, logits: Tensor, subnets: Sequence[Subnet]) -> Tensor:
    """The sub-networks' term of the loss, given the whole network's logits (1, N, K)."""
    target = logits.detach().float().log_softmax(-1)[0]
    total = torch.zeros((), device=logits.device)
    for subnet in subnets:
        size = round(mix.images.shape[-1] * subnet.side)
        images = F.interpolate(mix.images[0], (size, size), mode="bilinear", align_corners=True)
        with narrowed(net, subnet.width):
            log_p = net.read(images[None])[0].float().log_softmax(-1)
        total = total + F.kl_div(log_p, target, reduction="batchmean", log_target=True)
    return total


@contextmanager
def narrowed(net: Network, width: float) -> Iterator[None]:
    """Context in which `net` is its own sub-network: layers read only the first channels of their input.

    This equals slicing every weight, since no layer reads the other channels.
    """

    def first_channels(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        x = inputs[0]
        kept = torch.arange(x.shape[1], device=x.device) < int(width * x.shape[1] + 0.5)
        return (x * kept.view(-1, *[1] * (x.dim() - 2)),)

    layers = [m for part in (net.core, net.heads) for m in part.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    momentum = [norm.momentum for norm in norms]
    handles = [layer.register_forward_pre_hook(first_channels) for layer in layers]
    try:
        for norm in norms:
            norm.momentum = 0.0
        yield
    finally:
        for handle in handles:
            handle.remove()
        for norm, value in zip(norms, momentum, strict=True):
            norm.momentum = value
