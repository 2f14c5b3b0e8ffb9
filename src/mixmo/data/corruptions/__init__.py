"""Corruptions in the style of CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, 2019), seeded and batched.

Formulas and severities are those of the program that made the published sets: make_cifar_c.py in the GitHub repository
hendrycks/robustness. It set no seed and used photographs of frost, so the result here is CIFAR-C-STYLE: in a
comparison with published figures it is no substitute for the original files. Severities are in pixels of a 32x32 image;
a larger one is changed by as many pixels, except by elastic_transform, which grows with it.
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
    """Apply a corruption to a batch of images.

    Fractions are cut off, as in the published sets.

    >>> grey = torch.full((1, 8, 8, 3), 100, dtype=torch.uint8)
    >>> corrupt(grey, "brightness", 5, torch.Generator())[0, 0, 0]  # 100 + 0.3 * 255 = 176.5
    tensor([176, 176, 176], dtype=torch.uint8)

    Args:
        images_NHWC: uint8 (N, H, W, 3), of 8 pixels per side or more.
        name: One of `CORRUPTIONS`.
        severity: 1 to 5.
        generator: Source of the random draws. The result is a function of the images and of its state.

    Returns:
        Tensor: The corrupted images, of the same type and shape and on the same device.

    Raises:
        UserError: If the name or the severity is unknown, or the images have another type or shape.
    """
    _check(images_NHWC, severity)
    draw = Draw(generator, images_NHWC.device)
    x_NHWC = CORRUPTIONS[name](images_NHWC.float() / 255, severity, draw)
    # A thousandth of a level: what is a whole number but for float32 rounding must not fall to the one below.
    return (x_NHWC.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)


def _check(images: Tensor, severity: int) -> None:
    if severity not in SEVERITIES:
        raise UserError(f"severity = {severity}; give one of 1, 2, 3, 4, 5")
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] != 3 or min(images.shape[1:3]) < SMALLEST:
        found = f"{images.dtype} {tuple(images.shape)}"
        raise UserError(f"images are {found}; give uint8 (N, H, W, 3) of at least {SMALLEST} pixels per side")
