"""Operations of PIL on batches of uint8 images, each image with its own: integers, or the floats of PIL's own code.

They are the parts of AugMix, TrivialAugment, RandAugment and colour jitter. A geometric operation is a gather
(`sources`), one on values alone is a table of 256 values per image and channel (`equalized`, `stretched`), and
brightness, contrast, colour and sharpness interpolate between two images (`enhance`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def sources(affine: Sequence[Tensor], H: int, W: int) -> tuple[Tensor, Tensor]:
    """Which pixel each of P = H * W pixels comes from (R, P), and whether that lies inside of the image.

    As PIL's nearest-neighbour Image.transform: pixel (x, y) comes from (a x + b y + c, d x + e y + f), rounded down.

    Args:
        affine: a, b, c, d, e, f in 16.16 fixed point, integers (R, 1); c and f map the centre of the first pixel.
        H: Height.
        W: Width.
    """
    a, b, c, d, e, f = affine
    x_P = torch.arange(H * W, device=a.device, dtype=a.dtype) % W
    y_P = torch.arange(H * W, device=a.device, dtype=a.dtype) // W
    x_RP = (a * x_P + b * y_P + c) >> 16
    y_RP = (d * x_P + e * y_P + f) >> 16
    inside_RP = (x_RP >= 0) & (x_RP < W) & (y_RP >= 0) & (y_RP < H)
    return (y_RP.clamp(0, H - 1) * W + x_RP.clamp(0, W - 1)).long(), inside_RP


def equalized(pixels_RPC: Tensor) -> Tensor:
    """PIL's equalize as a table (R, 256, C): v becomes (step // 2 + pixels below v) // step.

    step = (pixels below the maximum) // 255; where it is 0, as on images under 256 pixels, nothing changes.
    """
    R, _, C = pixels_RPC.shape
    index_RPC = pixels_RPC.long()
    zeros_RVC = torch.zeros(R, 256, C, dtype=torch.int32, device=pixels_RPC.device)
    count_RVC = zeros_RVC.scatter_add(1, index_RPC, torch.ones_like(zeros_RVC[:1, :1, :1]).expand_as(index_RPC))
    below_RVC = count_RVC.cumsum(dim=1, dtype=torch.int32) - count_RVC
    step_R1C = below_RVC.gather(1, index_RPC.amax(dim=1, keepdim=True)) // 255
    level_RVC = (step_R1C // 2 + below_RVC) // step_R1C.clamp(min=1)
    value_V1 = torch.arange(256, device=pixels_RPC.device, dtype=torch.int32)[:, None]
    return torch.where(step_R1C > 0, level_RVC.clamp(max=255), value_V1)


def stretched(pixels_RPC: Tensor) -> Tensor:
    """PIL's autocontrast as a table (R, 256, C): 255 (v - lowest) / (highest - lowest), rounded down.

    In float64 and in PIL's order, since many results are whole numbers, where the last bit decides.
    """
    low_R1C = pixels_RPC.amin(dim=1, keepdim=True).double()
    range_R1C = pixels_RPC.amax(dim=1, keepdim=True).double() - low_R1C
    scale_R1C = torch.full_like(range_R1C, 255) / range_R1C.clamp(min=1)  # 255 / tensor would round twice
    value_V1 = torch.arange(256, device=pixels_RPC.device)[:, None]
    level_RVC = (value_V1 * scale_R1C + -low_R1C * scale_R1C).clamp(0, 255).long()
    return torch.where(range_R1C > 0, level_RVC, value_V1)


def enhance(
    images_NHWC: Tensor, factor_N: Tensor, color_N: Tensor, contrast_N: Tensor, sharpness_N: Tensor | None = None
) -> Tensor:
    """PIL's ImageEnhance: base + factor (image - base), clipped to 0..255 and rounded down.

    The base is black (brightness), or the image in grey, its mean grey or the image smoothed where the booleans (N,)
    of colour, contrast or sharpness say so. The colours of a grey image stay as they are; factor 1 is the identity.
    """
    grey_NHW1 = _grey(images_NHWC)
    base_NHWC = torch.where(_over(color_N), grey_NHW1, 0)
    base_NHWC = torch.where(_over(contrast_N), _rounded_mean(grey_NHW1), base_NHWC)
    if sharpness_N is not None:
        base_NHWC = torch.where(_over(sharpness_N), _smoothed(images_NHWC), base_NHWC)
    base_NHWC = base_NHWC.float()
    return (base_NHWC + _over(factor_N) * (images_NHWC - base_NHWC)).clamp(0, 255).to(torch.uint8)


def _over(x_N: Tensor) -> Tensor:
    return x_N[:, None, None, None]


def _grey(images_NHWC: Tensor) -> Tensor:
    """PIL's mode "L", int32 (N, H, W, 1): 0.299 R + 0.587 G + 0.114 B in 16.16 fixed point, rounded."""
    images_NHWC = images_NHWC.int()
    if images_NHWC.shape[3] == 1:
        return images_NHWC
    red, green, blue = images_NHWC.unbind(dim=3)
    return (19595 * red + 38470 * green + 7471 * blue + 2**15)[..., None] >> 16


def _rounded_mean(grey_NHW1: Tensor) -> Tensor:
    """Mean of each image as an integer, halves rounded up, (N, 1, 1, 1)."""
    pixels = grey_NHW1.shape[1] * grey_NHW1.shape[2]
    return ((2 * grey_NHW1.sum(dim=(1, 2, 3), keepdim=True) + pixels) // (2 * pixels)).int()


def _smoothed(images_NHWC: Tensor) -> Tensor:
    """PIL's filter SMOOTH, int32: the mean of 3 x 3 pixels, the middle one 5 times; the border stays as it is."""
    images_NHWC = images_NHWC.int()
    rows = images_NHWC[:, :-2] + images_NHWC[:, 1:-1] + images_NHWC[:, 2:]
    around = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]
    smooth_NHWC = images_NHWC.clone()
    smooth_NHWC[:, 1:-1, 1:-1] = (2 * (around + 4 * images_NHWC[:, 1:-1, 1:-1]) + 13) // 26
    return smooth_NHWC
