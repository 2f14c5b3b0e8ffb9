"""Images inside HTML and JSON, without files beside it."""

import base64
import io

import numpy as np
from PIL import Image
from torch import Tensor

LARGEST = 96  # pixels of the longer side


def data_uri(image_HWC: Tensor) -> str:
    """Return a uint8 image (H, W, C) as the address of a PNG that holds itself; a large one is made smaller."""
    image = to_pil(image_HWC)
    image.thumbnail((LARGEST, LARGEST))
    return png_uri(image)


def to_pil(image_HWC: Tensor) -> Image.Image:
    """Return a uint8 image (H, W, C) as PIL's: grey if it has not 3 channels."""
    pixels = np.asarray(image_HWC.cpu())
    if pixels.shape[2] not in (1, 3):  # such as satellite bands: the first as grey
        pixels = pixels[:, :, :1]
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def png_uri(image: Image.Image, compress_level: int = -1) -> str:
    """Return an image as the address of a PNG that holds itself, without loss."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=compress_level)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
