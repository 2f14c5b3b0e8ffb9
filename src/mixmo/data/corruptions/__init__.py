"""Corruptions in the style of CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, 2019), seeded and batched.

Formulas and severities are those of make_cifar_c.py in hendrycks/robustness, which set no seed and used photographs of
frost. Severities are in pixels, also of images larger than 32x32, except those of elastic_transform, which scale.
"""

import torch
from torch import Tensor

from mixmo.data.corrupted import SEVERITIES
from mixmo.data.corruptions import blur, colour, digital, noise, spatter, weather  # noqa: F401  they register
from mixmo.data.corruptions.base import CORRUPTIONS, Draw
from mixmo.utils.errors import UserError

__all__ = ["CORRUPTIONS", "SEVERITIES", "corrupt"]

SMALLEST = 8  # pixels per side; some formulas need a neighbourhood


@torch.no_grad()
def corrupt(images_NHWC: Tensor, name: str, severity: int, generator: torch.Generator) -> Tensor:
    """Apply one of `CORRUPTIONS` to uint8 images (N, H, W, 3) of at least 8 pixels per side, at severity 1 to 5.

    Fractions are cut off, as in the published sets.

    >>> grey = torch.full((1, 8, 8, 3), 100, dtype=torch.uint8)
    >>> corrupt(grey, "brightness", 5, torch.Generator())[0, 0, 0]  # 100 + 0.3 * 255 = 176.5
    tensor([176, 176, 176], dtype=torch.uint8)
    """
    if severity not in SEVERITIES:
        raise UserError(f"severity = {severity}; give one of 1, 2, 3, 4, 5")
    kind, shape = images_NHWC.dtype, tuple(images_NHWC.shape)
    if kind != torch.uint8 or len(shape) != 4 or shape[3] != 3 or min(shape[1:3]) < SMALLEST:
        raise UserError(f"images are {kind} {shape}; give uint8 (N, H, W, 3) of at least {SMALLEST} pixels per side")
    draw = Draw(generator, images_NHWC.device)
    x_NHWC = CORRUPTIONS[name](images_NHWC.float() / 255, severity, draw)
    # A thousandth of a level: what is a whole number but for float32 rounding must not fall to the one below.
    return (x_NHWC.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)
