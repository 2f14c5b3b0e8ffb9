"""Blurring, zooming and resizing act on rows and columns alike: as matrices A and B, an image x becomes A x Bᵀ."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

Side = Callable[[int], Tensor]  # pixels of a side -> the matrix for it, float64


def rows(x_NHWC: Tensor, side: Side) -> Tensor:
    """A x for every image and channel."""
    return torch.einsum("ih,nhwc->niwc", side(x_NHWC.shape[1]).to(x_NHWC), x_NHWC)


def columns(x_NHWC: Tensor, side: Side) -> Tensor:
    """x Bᵀ for every image and channel."""
    return torch.einsum("jw,nhwc->nhjc", side(x_NHWC.shape[2]).to(x_NHWC), x_NHWC)


def gaussian(x_NHWC: Tensor, sigma: float, truncate: float = 4.0, mirror: bool = False) -> Tensor:
    """Gaussian blur. Beyond the border comes the last pixel again, or with `mirror` the image reversed."""
    side = partial(gaussian_matrix, sigma=sigma, truncate=truncate, mirror=mirror)
    return rows(columns(x_NHWC, side), side)


def gaussian_matrix(size: int, sigma: float, truncate: float, mirror: bool) -> Tensor:
    """Weights exp(-d^2 / 2 sigma^2) of the pixels up to `truncate` sigma away, which sum to one."""
    if sigma == 0:
        return torch.eye(size, dtype=torch.float64)
    radius = int(truncate * sigma + 0.5)
    offset_T = torch.arange(-radius, radius + 1)
    weight_T = torch.exp(-0.5 * (offset_T.double() / sigma) ** 2)
    pixel_ST = torch.arange(size)[:, None] + offset_T
    if mirror:
        pixel_ST = pixel_ST % (2 * size)
        pixel_ST = torch.minimum(pixel_ST, 2 * size - 1 - pixel_ST)
    weight_ST = (weight_T / weight_T.sum()).expand(size, -1)
    return torch.zeros(size, size, dtype=torch.float64).scatter_add_(1, pixel_ST.clamp(0, size - 1), weight_ST)


def zoom(x_NHWC: Tensor, factor: float) -> Tensor:
    """The centre enlarged by `factor` to the size of the image, bilinearly."""
    side = partial(zoom_matrix, factor=factor)
    return rows(columns(x_NHWC, side), side)


def zoom_matrix(size: int, factor: float) -> Tensor:
    """The centre ceil(size / factor) pixels become round(that * factor), corner on corner, of which `size` are kept."""
    kept = math.ceil(size / factor)
    grown = round(kept * factor)
    at_S = torch.arange(grown, dtype=torch.float64)[(grown - size) // 2 :][:size] * (kept - 1) / (grown - 1)
    below_S = at_S.long().clamp(max=kept - 2)
    share_S = at_S - below_S
    pixel_S2 = (size - kept) // 2 + torch.stack([below_S, below_S + 1], 1)
    weight_S2 = torch.stack([1 - share_S, share_S], 1)
    return torch.zeros(size, size, dtype=torch.float64).scatter_add_(1, pixel_S2, weight_S2)


def box_matrix(size: int, to: int) -> Tensor:
    """PIL's BOX resizing from `size` pixels to `to`: the mean of the whole pixels under each new one, (to, size)."""
    scale = size / to
    support = max(scale, 1.0) / 2
    centre_T1 = (torch.arange(to, dtype=torch.float64)[:, None] + 0.5) * scale
    pixel_S = torch.arange(size)
    distance_TS = pixel_S + 0.5 - centre_T1
    first_T1, last_T1 = (centre_T1 - support + 0.5).long(), (centre_T1 + support + 0.5).long()
    under_TS = (distance_TS > -support) & (distance_TS <= support) & (pixel_S >= first_T1) & (pixel_S < last_T1)
    return under_TS / under_TS.sum(1, keepdim=True, dtype=torch.float64)
