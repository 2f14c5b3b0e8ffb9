"""Colour jitter and random erasing, for photographs.

torchvision.transforms.v2 is not used, since it draws one set of factors and one box per call, for all images of a
batch. Kornia draws them per image, but inside of the call and the order of the factors once, on the host.
"""

import math

import torch
from torch import Tensor

from mixmo.augment.operations import enhance

COLOR_JITTER_UNIFORMS = 4  # factors of brightness, contrast and saturation; their order
RANDOM_ERASE_UNIFORMS = 5  # whether, area, ratio, row, column
AREA = (0.02, 1 / 3)  # smallest and largest box of `random_erase`, as shares of the image
RATIO = 0.3  # height to width of its widest box, and the inverse of its narrowest


def color_jitter(images_NHWC: Tensor, u_N4: Tensor, strength: float) -> Tensor:
    """Change brightness, contrast and saturation of uint8 images of 1 or 3 channels by factors of their own.

    As torchvision's ColorJitter and timm's --color-jitter with PIL images: factors U(max(0, 1 - strength),
    1 + strength), in one of the six orders, drawn for each image; no hue. The saturation of grey images stays.
    """
    low = max(0.0, 1 - strength)
    factor_N3 = low + (1 + strength - low) * u_N4[:, :3]
    order_N = (6 * u_N4[:, 3]).long()
    first_N = order_N % 3
    second_N = (first_N + 1 + order_N // 3) % 3
    for which_N in (first_N, second_N, 3 - first_N - second_N):
        factor_N = factor_N3.gather(1, which_N[:, None])[:, 0]
        images_NHWC = enhance(images_NHWC, factor_N, color_N=which_N == 2, contrast_N=which_N == 1)
    return images_NHWC


def random_erase(images_NCHW: Tensor, u_N5: Tensor, prob: float) -> Tensor:
    """Random erasing (Zhong et al., 2020) of normalised images: a box of zeros, the mean, with probability `prob`.

    As timm's mode "const": a share U(0.02, 1/3) of the area, height to width log-uniform in 0.3..1/0.3, anywhere inside
    of the image. Where a side is too long, timm draws again, up to ten times; here it is clipped to that of the image.
    """
    H, W = images_NCHW.shape[2:]
    area_N = (AREA[0] + (AREA[1] - AREA[0]) * u_N5[:, 1]) * (H * W)
    ratio_N = torch.exp(math.log(RATIO) * (1 - 2 * u_N5[:, 2]))
    rows_NH = _interval((area_N * ratio_N).sqrt(), u_N5[:, 3], H)
    columns_NW = _interval((area_N / ratio_N).sqrt(), u_N5[:, 4], W)
    box_NHW = rows_NH[:, :, None] & columns_NW[:, None, :] & (u_N5[:, 0] < prob)[:, None, None]
    return torch.where(box_NHW[:, None], 0, images_NCHW)


def _interval(side_N: Tensor, u_N: Tensor, length: int) -> Tensor:
    """Positions of a side of rounded length at a uniform place among `length` positions."""
    side_N1 = side_N.round().clamp(max=length)[:, None]
    start_N1 = ((length + 1 - side_N1) * u_N[:, None]).floor()
    position_L = torch.arange(length, device=u_N.device)
    return (position_L >= start_N1) & (position_L < start_N1 + side_N1)
