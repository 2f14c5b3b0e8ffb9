"""Feature-space baselines for single networks: samples of a batch are mixed with each other at a random place.

Whatever the place drawn, the network computes the same operations (a share of one leaves the features alone), so that
the step stays one static graph.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from mixmo.mixing.masks import BLOCK, blocks, cut
from mixmo.mixing.pairing import draw_order
from mixmo.models.cost import layer_calls
from mixmo.models.network import Network, Stages
from mixmo.utils.errors import UserError
from mixmo.utils.registry import Registry
from mixmo.utils.rng import draw_gamma

PLACES = 3
GAMMA = 0.5  # share of the features that PatchUp asks for


class HiddenDraws(NamedTuple):
    """The randomness of one batch."""

    order: Tensor  # (N,) a permutation: who is whose partner
    batch: Tensor  # (5,) uniform: the place, whether at all, and a box
    gamma: Tensor  # (2,) standard gamma variables of shape alpha: one lambda ~ Beta(alpha, alpha) for the batch
    noise: tuple[Tensor, ...]  # (C, h, w) uniform, a map for each place that needs one


Shares = Callable[[HiddenDraws], tuple[tuple[Tensor, ...], Tensor]]


class Kind(NamedTuple):
    """One way to mix features."""

    shares: Shares  # draws -> what each stage's input keeps of its own, and the share of the own label in the target
    stages: tuple[int, ...]  # the stages whose input's shape it needs noise for
    weight: float  # of the loss


HIDDEN: Registry[Kind] = Registry("feature mixing")


def draw_hidden(
    kind: Kind, alpha: float, shapes: Sequence[torch.Size], n: int, device: torch.device, generator: Generator
) -> HiddenDraws:
    """The randomness for n samples; `shapes` (C, h, w) are those of the features that enter each stage of the core."""
    order = draw_order(n, device=device, generator=generator)
    batch = torch.rand(5, device=device, generator=generator)
    gamma = draw_gamma(alpha, 2, device=device, generator=generator)
    noise = tuple(torch.rand(shapes[k], device=device, generator=generator) for k in kind.stages)
    return HiddenDraws(order, batch, gamma, noise)


def place(draws: HiddenDraws) -> Tensor:
    return (draws.batch[0] * PLACES).long().clamp_max(PLACES - 1)


def manifold_mixup(draws: HiddenDraws) -> tuple[tuple[Tensor, ...], Tensor]:
    """Manifold Mixup: lambda h_i + (1 - lambda) h_k before stage 0, 1 or 2, lambda ~ Beta(alpha, alpha) per batch.

    The encoder is linear, so mixing what enters stage 0 of a WRN or PreActResNet is mixing pixels, which is the first
    of the method's places; in a ResNet, normalisation and pooling come between.
    """
    lam = draws.gamma[0] / draws.gamma.sum()
    return tuple(torch.where(place(draws) == k, lam, 1.0) for k in range(PLACES)), lam


def patchup(draws: HiddenDraws) -> tuple[tuple[Tensor, ...], Tensor]:
    """Hard PatchUp: blocks of features swapped with the partner's, one pattern (C, h, w) for the batch.

    As in its authors' code, the three places are CutMix at the input (here on the encoder's output), blocks on the
    encoder's output and blocks after the first stage; a batch is mixed with probability 0.7, and gamma = 0.5 asks for
    half of the features. The two terms of its loss are equal for the hard variant, for cross-entropy is linear in the
    target: hence the weight of two.
    """
    h, w = draws.noise[0].shape[-2:]
    box = cut(draws.batch[2:3], draws.batch[None, 3:5], h, w)
    kept = (1 - box, *(1 - blocks(GAMMA, noise, fitting(noise)) for noise in draws.noise))
    at = torch.where(draws.batch[1] < 0.7, place(draws), PLACES)
    first = torch.where(at == 0, kept[0], torch.where(at == 1, kept[1], 1.0))
    second = torch.where(at == 2, kept[2], 1.0)
    return (first, second), first.mean() * second.mean()


def fitting(map_Chw: Tensor) -> int:
    """The side of the blocks: PatchUp's, or the largest odd one that fits a smaller map."""
    return min(BLOCK, (min(map_Chw.shape[-2:]) - 1) // 2 * 2 + 1)


HIDDEN.add("manifold-mixup")(Kind(manifold_mixup, stages=(), weight=1.0))
HIDDEN.add("patchup")(Kind(patchup, stages=(0, 1), weight=2.0))


def stage_shapes(net: Network, size: tuple[int, int, int]) -> list[torch.Size]:
    """(C, h, w) of the features that enter each stage of the core, for images (C, H, W)."""
    stages = len(net.core.stages) if isinstance(net.core, Stages) else 0
    if stages < PLACES:
        raise UserError(
            f"feature mixing needs a core of at least {PLACES} Stages, and this one has {stages}; take another "
            "model, or feature_mixing = none"
        )
    names = {f"core.stages.{k}" for k in range(stages)}
    return [call.input.shape[1:] for _, call in layer_calls(net, size) if call.name in names]
