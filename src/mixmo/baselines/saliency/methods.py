"""Saliency methods by name: the random numbers of a batch, and how it is mixed."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from mixmo.baselines.saliency.comixup import BLOCKS, comixup_masks, comixup_mix, part_size
from mixmo.baselines.saliency.gradient import saliency
from mixmo.baselines.saliency.puzzle import GRIDS, puzzle_mask, puzzle_mix
from mixmo.mixing.types import Mix
from mixmo.models import Ensemble
from mixmo.utils.registry import Registry
from mixmo.utils.rng import draw_gamma


class SaliencyDraws(NamedTuple):
    """The random numbers of one batch."""

    blocks: int  # of the mask per side; on the host, since it is a shape
    uniform: Tensor  # (N,): the partners; Co-Mixup (N, n, n): the initial labels
    gamma: Tensor  # standard gamma variables of shape alpha: lambda ~ Beta (2,), or Dirichlet (N,)


class Settings(NamedTuple):
    """Settings from the recipe and the data set."""

    clean: float  # weight of the unmixed images' loss
    transport: int  # side of the squares that move, in pixels
    std: tuple[float, ...]  # per channel, of pixels in [0, 1]


class SaliencyMethod(NamedTuple):
    """A method that mixes by saliency."""

    grids: tuple[int, ...]  # blocks of the mask per side, one of them drawn per batch
    draw: Callable[[int, tuple[int, ...], float, Generator], SaliencyDraws]  # samples, grids, alpha
    apply: Callable[[Tensor, Tensor, Tensor, SaliencyDraws, Settings], tuple[Tensor, Tensor]]

    def fitting(self, side: int) -> tuple[int, ...]:
        """The grids that divide images of this side into equal blocks."""
        return tuple(n for n in self.grids if side % n == 0)


SALIENCY: Registry[SaliencyMethod] = Registry("saliency method")


def mix_by_saliency(
    net: Ensemble, mix: Mix, method: SaliencyMethod, draws: SaliencyDraws, settings: Settings
) -> tuple[Mix, Tensor | None]:
    """Mix a single network's batch with soft targets (1, N, K); also return the loss term of the unmixed batch."""
    salient_NHW, extra = saliency(net, mix, settings.clean)
    with torch.no_grad(), torch.autocast(mix.images.device.type, enabled=False):
        images, targets = method.apply(mix.images[0], mix.targets[0], salient_NHW, draws, settings)
    return mix._replace(images=images[None], targets=targets[None]), extra


def draw_puzzle(n: int, grids: tuple[int, ...], alpha: float, generator: Generator) -> SaliencyDraws:
    device = generator.device
    uniform = torch.rand(n, device=device, generator=generator)
    gamma = draw_gamma(alpha, 2, device=device, generator=generator)
    blocks = grids[np.random.default_rng(generator.initial_seed()).integers(len(grids))]
    return SaliencyDraws(blocks, uniform, gamma)


def by_puzzle(
    images_NCHW: Tensor, targets_NK: Tensor, saliency_NHW: Tensor, draws: SaliencyDraws, settings: Settings
) -> tuple[Tensor, Tensor]:
    """Puzzle-Mix: two images mixed by the mask that hides least saliency, their blocks transported into view."""
    partner_N = draws.uniform.argsort()
    lam = draws.gamma[0] / draws.gamma.sum()
    std = images_NCHW.new_tensor(settings.std)
    mask = puzzle_mask(images_NCHW, saliency_NHW, partner_N, lam, draws.blocks, std)
    mixed, own_N = puzzle_mix(images_NCHW, mask, saliency_NHW, partner_N, settings.transport)
    return mixed, torch.lerp(targets_NK[partner_N], targets_NK, own_N[:, None])


def draw_comixup(n: int, grids: tuple[int, ...], alpha: float, generator: Generator) -> SaliencyDraws:
    device, blocks = generator.device, grids[0]
    uniform = torch.rand(n, blocks, blocks, device=device, generator=generator)
    gamma = draw_gamma(alpha, n, device=device, generator=generator)
    return SaliencyDraws(blocks, uniform, gamma)


def by_comixup(
    images_NCHW: Tensor, targets_NK: Tensor, saliency_NHW: Tensor, draws: SaliencyDraws, settings: Settings
) -> tuple[Tensor, Tensor]:
    """Co-Mixup: up to 20 images mixed by blocks into as many, each salient, together diverse."""
    m = part_size(len(images_NCHW))
    images, targets, maps, uniform, gamma = (
        x.unflatten(0, (-1, m)) for x in (images_NCHW, targets_NK, saliency_NHW, draws.uniform, draws.gamma)
    )
    masks = comixup_masks(maps, gamma / gamma.sum(1, keepdim=True), (uniform * m).long().clamp_max(m - 1))
    mixed, labels = comixup_mix(images, targets, masks)
    return mixed.flatten(0, 1), labels.flatten(0, 1)


SALIENCY.add("puzzle-mix")(SaliencyMethod(GRIDS, draw_puzzle, by_puzzle))
SALIENCY.add("co-mixup")(SaliencyMethod((BLOCKS,), draw_comixup, by_comixup))
