"""Feature-space baselines for single networks: samples of a batch are mixed with each other at a random place.

Whatever the place drawn, the network computes the same operations (a share of one keeps the features), so that the step
stays one static graph.
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
GAMMA = 0.5  # share of the features that PatchUp swaps


class FeatureMixingDraws(NamedTuple):
    """The random numbers of one batch."""

    order: Tensor  # (N,) permutation: the partner of each sample
    batch: Tensor  # (5,) uniform: the place, whether at all, and a box
    gamma: Tensor  # (2,) standard gamma variables of shape alpha: one lambda ~ Beta(alpha, alpha) for the batch
    noise: tuple[Tensor, ...]  # (C, h, w) uniform, a map for each place that needs one


Shares = Callable[[FeatureMixingDraws], tuple[tuple[Tensor, ...], Tensor]]


class FeatureMixingMethod(NamedTuple):
    """A method that mixes features."""

    shares: Shares  # draws -> own share in each stage's input; share of the own label in the target
    stages: tuple[int, ...]  # stages whose input needs noise of its shape
    weight: float  # of the loss


FEATURE_MIXING: Registry[FeatureMixingMethod] = Registry("feature mixing")


def draw_feature_mixing(
    method: FeatureMixingMethod, alpha: float, shapes: Sequence[torch.Size], n: int, generator: Generator
) -> FeatureMixingDraws:
    """Draw the random numbers for n samples; `shapes` (C, h, w) of the features that enter each stage of the core."""
    device = generator.device
    order = draw_order(n, device=device, generator=generator)
    batch = torch.rand(5, device=device, generator=generator)
    gamma = draw_gamma(alpha, 2, device=device, generator=generator)
    noise = tuple(torch.rand(shapes[k], device=device, generator=generator) for k in method.stages)
    return FeatureMixingDraws(order, batch, gamma, noise)


def _place(draws: FeatureMixingDraws) -> Tensor:
    return (draws.batch[0] * PLACES).long().clamp_max(PLACES - 1)


def manifold_mixup(draws: FeatureMixingDraws) -> tuple[tuple[Tensor, ...], Tensor]:
    """Manifold Mixup: lambda h_i + (1 - lambda) h_k before stage 0, 1 or 2, lambda ~ Beta(alpha, alpha) per batch.

    The encoder is linear, so mixing what enters stage 0 of a WRN or PreActResNet is mixing pixels, which is the first
    of the method's places; in a ResNet, normalisation and pooling come between.
    """
    lam = draws.gamma[0] / draws.gamma.sum()
    return tuple(torch.where(_place(draws) == k, lam, 1.0) for k in range(PLACES)), lam


def patchup(draws: FeatureMixingDraws) -> tuple[tuple[Tensor, ...], Tensor]:
    """Hard PatchUp: blocks of features swapped with the partner's, one pattern (C, h, w) for the batch.

    As in its authors' code, the three places are CutMix at the input (here on the encoder's output), blocks on the
    encoder's output and blocks after the first stage; a batch is mixed with probability 0.7, and gamma = 0.5 is
    half of the features. The two terms of its loss are equal for the hard variant, since cross-entropy is linear in the
    target: hence the weight of two.
    """
    h, w = draws.noise[0].shape[-2:]
    box = cut(draws.batch[2:3], draws.batch[None, 3:5], h, w)
    kept = (1 - box, *(1 - blocks(GAMMA, noise, _block_side(noise)) for noise in draws.noise))
    at = torch.where(draws.batch[1] < 0.7, _place(draws), PLACES)
    first = torch.where(at == 0, kept[0], torch.where(at == 1, kept[1], 1.0))
    second = torch.where(at == 2, kept[2], 1.0)
    return (first, second), first.mean() * second.mean()


def _block_side(map_Chw: Tensor) -> int:
    """The side of the blocks: PatchUp's, or the largest odd one that fits a smaller map."""
    return min(BLOCK, (min(map_Chw.shape[-2:]) - 1) // 2 * 2 + 1)


FEATURE_MIXING.add("manifold-mixup")(FeatureMixingMethod(manifold_mixup, stages=(), weight=1.0))
FEATURE_MIXING.add("patchup")(FeatureMixingMethod(patchup, stages=(0, 1), weight=2.0))


def stage_shapes(net: Network, size: tuple[int, int, int]) -> list[torch.Size]:
    """(C, h, w) of the features that enter each stage of the core, for images (C, H, W)."""
    stages = len(net.core.stages) if isinstance(net.core, Stages) else 0
    if stages < PLACES:
        raise UserError(f"feature mixing needs a core of {PLACES} Stages, not {stages}; set feature_mixing = none")
    names = {f"core.stages.{k}" for k in range(stages)}
    return [call.input.shape[1:] for _, call in layer_calls(net, size) if call.name in names]
