"""Small images inside HTML, without files beside it."""

import base64
import io

import numpy as np
from PIL import Image
from torch import Tensor

LARGEST = 96  # pixels of the longer side


def data_uri(image_HWC: Tensor) -> str:
    """Return a uint8 image (H, W, C) as the address of a PNG that holds itself; a large one is made smaller."""
    pixels = np.asarray(image_HWC.cpu())
    if pixels.shape[2] not in (1, 3):  # such as satellite bands: the first as grey
        pixels = pixels[:, :, :1]
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((LARGEST, LARGEST))
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
