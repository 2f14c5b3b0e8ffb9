"""Puzzle-Mix: the mask that hides least saliency, and the transport of salient blocks to where it shows them.

Kim, Choo and Song, ICML 2020. For sample i with partner k, mask z and transports P_i, P_k,

    x = z * P_i(x_i) + (1 - z) * P_k(x_k),    y = mean(z) y_i + (1 - mean(z)) y_k.

As in its authors' code one lambda ~ Beta(alpha, alpha), one resolution of the mask and one shuffle are drawn per batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixmo.baselines.saliency.energy import puzzle_energy, shares, squares
from mixmo.baselines.saliency.gradient import share
from mixmo.baselines.saliency.solve import minimise
from mixmo.baselines.saliency.transport import move, plan

GRIDS = (2, 4, 8, 16)  # blocks per side
NEIGHBOUR = 4  # side in pixels over which colours are averaged before they are compared across a border


def puzzle_mask(
    images_NCHW: Tensor, saliency_NHW: Tensor, partner_N: Tensor, lam: Tensor, blocks: int, std_C: Tensor
) -> Tensor:
    """(N, n, n) share of the own image in each block; `std` rescales images to pixels in [0, 1]."""
    own = share(saliency_NHW, blocks)
    colours = F.avg_pool2d(images_NCHW * std_C[:, None, None], divisor(images_NCHW.shape[-1] // blocks, NEIGHBOUR))
    energy = puzzle_energy(own, own[partner_N], colours, colours[partner_N], lam)
    label = minimise(energy, squares(lam.device))
    return shares(lam.device)[label]


def puzzle_mix(
    images_NCHW: Tensor, mask_Nnn: Tensor, saliency_NHW: Tensor, partner_N: Tensor, transport: int
) -> tuple[Tensor, Tensor]:
    """Mixed images, and the share (N,) of the own label; squares of `transport` pixels move, or blocks if it is 0."""
    width, blocks = images_NCHW.shape[-1], mask_Nnn.shape[-1]
    block = width // blocks
    side = width // divisor(block, transport) if transport else blocks
    finer_NTT = grow(mask_Nnn, side)
    salient = share(saliency_NHW, side).flatten(1)
    own = move(images_NCHW, plan((finer_NTT > 0).float().flatten(1), salient, side), side)
    other = move(images_NCHW[partner_N], plan((finer_NTT < 1).float().flatten(1), salient[partner_N], side), side)
    mixed = torch.lerp(other, own, grow(mask_Nnn, width)[:, None].to(own.dtype))
    return mixed, mask_Nnn.mean((1, 2))


def grow(mask_Nnn: Tensor, side: int) -> Tensor:
    """The mask at a multiple of its resolution."""
    times = side // mask_Nnn.shape[-1]
    return mask_Nnn.repeat_interleave(times, 1).repeat_interleave(times, 2)


def divisor(length: int, most: int) -> int:
    """The largest divisor of a length that is not above `most`."""
    return max(d for d in range(1, min(length, most) + 1) if length % d == 0)
