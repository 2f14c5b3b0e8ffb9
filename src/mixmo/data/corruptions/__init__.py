"""Corruptions in the style of CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, 2019), seeded and batched.

Formulas and severities are those of the program that made the published sets: make_cifar_c.py in the GitHub repository
hendrycks/robustness. It set no seed and used photographs of frost, so what comes out here is CIFAR-C-STYLE: in a
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

SMALLEST = 8  # pixels a side; some formulas need a neighbourhood


@torch.no_grad()
def corrupt(images_NHWC: Tensor, name: str, severity: int, generator: torch.Generator) -> Tensor:
    """The images under corruption `name`: uint8 (N, H, W, 3) in and out, on their device.

    The result is a function of the images, their number and the generator's state. Fractions are cut off, as in the
    published sets.

    >>> grey = torch.full((1, 8, 8, 3), 100, dtype=torch.uint8)
    >>> corrupt(grey, "brightness", 5, torch.Generator())[0, 0, 0]  # 100 + 0.3 * 255 = 176.5
    tensor([176, 176, 176], dtype=torch.uint8)
    """
    if severity not in SEVERITIES:
        raise UserError(f"severity = {severity}; take one of 1, 2, 3, 4, 5")
    if images_NHWC.dtype != torch.uint8 or images_NHWC.ndim != 4 or images_NHWC.shape[3] != 3:
        raise UserError(
            f"the images to corrupt are {images_NHWC.dtype} {tuple(images_NHWC.shape)}; pass uint8 colours (N, H, W, 3)"
        )
    if min(images_NHWC.shape[1:3]) < SMALLEST:
        raise UserError(f"the images to corrupt are {tuple(images_NHWC.shape)}; take at least {SMALLEST} pixels a side")
    draw = Draw(generator, images_NHWC.device)
    x_NHWC = CORRUPTIONS[name](images_NHWC.float() / 255, severity, draw)
    # A thousandth of a level: what is a whole number but for float32 rounding must not fall to the one below.
    return (x_NHWC.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)
