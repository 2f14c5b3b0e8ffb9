"""Blur: of a lens, of frosted glass, of motion."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mixmo.data.corruptions import separable
from mixmo.data.corruptions.base import CORRUPTIONS, Draw


@CORRUPTIONS.add("gaussian_blur")
def gaussian_blur(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """Convolution with a Gaussian of standard deviation c pixels."""
    return separable.gaussian(x_NHWC, sigma=(0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1])


@CORRUPTIONS.add("defocus_blur")
def defocus_blur(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """Convolution with a disk of a radius in pixels, its rim smoothed by a Gaussian of 3x3 pixels."""
    radius, sigma = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))[severity - 1]
    kernel = disk(radius, sigma).to(x_NHWC)
    reach = len(kernel) // 2
    x_NCHW = F.pad(x_NHWC.permute(0, 3, 1, 2), (reach,) * 4, mode="reflect")
    blurred_NCHW = F.conv2d(x_NCHW, kernel.expand(3, 1, -1, -1), groups=3)
    return blurred_NCHW.permute(0, 2, 3, 1)


def disk(radius: float, sigma: float) -> Tensor:
    """The pixels within `radius`, smoothed by the three taps of a Gaussian, in a square just large enough; sums to one.

    >>> disk(1.0, 0.001)[1:-1, 1:-1]
    tensor([[0.0000, 0.2000, 0.0000],
            [0.2000, 0.2000, 0.2000],
            [0.0000, 0.2000, 0.0000]], dtype=torch.float64)
    """
    offset = torch.arange(-int(radius) - 1, int(radius) + 2, dtype=torch.float64)
    inside = (offset[:, None] ** 2 + offset**2 <= radius**2).double()
    taps = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64).div(sigma).square().mul(-0.5).exp()
    smooth = torch.outer(taps, taps) / taps.sum() ** 2
    return F.conv2d((inside / inside.sum())[None, None], smooth[None, None], padding=1)[0, 0]


@CORRUPTIONS.add("glass_blur")
def glass_blur(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """Blur, replace each pixel by itself or one next to it above and to the left, blur again.

    The published code means to swap neighbours, from the last pixel backwards. But it exchanges two views of one numpy
    array, which copies: a pixel takes a neighbour's value, and that neighbour, read before it is its turn, keeps its
    own. So all pixels of a pass move at once.
    """
    sigma, passes = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[severity - 1]
    samples, height, width, _ = x_NHWC.shape
    x_NHWC = (separable.gaussian(x_NHWC, sigma) * 255 + 1e-3).floor() / 255
    index_N11 = torch.arange(samples, device=x_NHWC.device)[:, None, None]
    row_H1 = torch.arange(2, height, device=x_NHWC.device)[:, None]  # the first two rows and columns stay
    column_W = torch.arange(2, width, device=x_NHWC.device)
    for _ in range(passes):
        dx, dy = draw.integers(-1, 1, (samples, height - 2, width - 2, 2)).unbind(3)
        moved_NHWC = x_NHWC.clone()
        moved_NHWC[:, 2:, 2:] = x_NHWC[index_N11, row_H1 + dy, column_W + dx]
        x_NHWC = moved_NHWC
    return separable.gaussian(x_NHWC, sigma)


@CORRUPTIONS.add("motion_blur")
def motion_blur(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """Smeared along a line at a random angle of -45 to 45 degrees, an image's own."""
    radius, sigma = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))[severity - 1]
    return smear(x_NHWC, radius, sigma, draw.uniform(-45, 45, (len(x_NHWC),)))


def smear(x_NHWC: Tensor, radius: int, sigma: float, degrees_N: Tensor) -> Tensor:
    """ImageMagick's motion blur: sum_t k_t x(p + t u), t = 0 .. 2 radius, cut to whole levels.

    k is one half of a Gaussian, u the direction, t u rounded to whole pixels; beyond the border the last pixel counts.
    """
    _, height, width, channels = x_NHWC.shape
    tap_T = torch.arange(2 * radius + 1, device=x_NHWC.device)
    weight_T = torch.exp(-0.5 * (tap_T / sigma) ** 2)
    weight_T = weight_T / weight_T.sum()
    angle_N1 = torch.deg2rad(degrees_N.double())[:, None]
    right_NT, down_NT = (torch.ceil(tap_T * side - 0.5).long() for side in (angle_N1.cos(), angle_N1.sin()))
    row_H, column_W = torch.arange(height, device=x_NHWC.device), torch.arange(width, device=x_NHWC.device)
    flat_NPC, smeared_NPC = x_NHWC.flatten(1, 2), torch.zeros_like(x_NHWC.flatten(1, 2))
    for tap, weight in enumerate(weight_T):
        row_NH = (row_H + down_NT[:, tap : tap + 1]).clamp(0, height - 1)
        column_NW = (column_W + right_NT[:, tap : tap + 1]).clamp(0, width - 1)
        pixel_NP = (row_NH[:, :, None] * width + column_NW[:, None, :]).flatten(1)
        smeared_NPC += weight * flat_NPC.gather(1, pixel_NP[:, :, None].expand(-1, -1, channels))
    return (smeared_NPC.view_as(x_NHWC) * 255 + 2e-3).floor() / 255


@CORRUPTIONS.add("zoom_blur")
def zoom_blur(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """The mean of the image and of its enlargements by 1.00, 1.01, ..., of which the last is about c."""
    c = (1.06, 1.11, 1.16, 1.21, 1.26)[severity - 1]
    factors = np.arange(1, c, 0.01).tolist()  # by numpy, as it decides by rounding whether c itself is among them
    total_NHWC = x_NHWC + sum(separable.zoom(x_NHWC, factor) for factor in factors)
    return total_NHWC / (len(factors) + 1)
