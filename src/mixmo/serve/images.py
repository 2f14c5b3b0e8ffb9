"""Decode image files to the network's input, within the limits."""

import base64
import binascii
import io
import math
import time
from typing import NamedTuple

import numpy as np
import torch
from PIL import UnidentifiedImageError
from torch import Tensor

from mixmo.augment.basic import to_shape
from mixmo.data.decode import LISTED, TooLargeError, open_image, to_square
from mixmo.inference.preparation import resized_side
from mixmo.inference.thumbnails import png_uri, to_pil
from mixmo.models.metadata import About
from mixmo.serve.errors import RequestError, quotable
from mixmo.utils.errors import first_line


class Upload(NamedTuple):
    """An image file that a client sent."""

    name: str | None  # of the file
    content: bytes | str  # base64 if it is text


def prepare(
    uploads: list[Upload], about: About, max_pixels: int, exact: bool = False, deadline: float = math.inf
) -> Tensor:
    """Decode, resize and crop images as in training: uint8 (N, H, W, C).

    Args:
        uploads: The files.
        about: How images are prepared.
        max_pixels: Most pixels of an image.
        exact: Take an image that has the network's input size as it is, as `mixmo.predict` does with arrays.
        deadline: Time of `time.perf_counter` after which no further image is decoded.

    Raises:
        RequestError: If a file is not an image, is damaged or is too large.
        TimeoutError: After the deadline.
    """
    channels, height, width = about.size
    images = []
    for number, upload in enumerate(uploads, start=1):
        if time.perf_counter() > deadline:
            raise TimeoutError
        square = _square(upload, _where(number, upload, len(uploads)), about, max_pixels, exact)
        edge = (len(square) - height) // 2
        images.append(square[edge : edge + height, edge : edge + width])
    images_NHWC = torch.from_numpy(np.stack(images))
    return images_NHWC if channels == 3 else to_shape(images_NHWC, channels, height, width)


def to_png(image_HWC: Tensor) -> str:
    """Return uint8 pixels as a data URL, without loss and fast.

    >>> to_png(torch.zeros(2, 2, 3, dtype=torch.uint8))[:27]
    'data:image/png;base64,iVBOR'
    """
    return png_uri(to_pil(image_HWC), compress_level=1)


def _square(upload: Upload, where: str, about: About, max_pixels: int, exact: bool) -> np.ndarray:
    content = _from_base64(upload.content, where) if isinstance(upload.content, str) else upload.content
    if not content:
        raise RequestError(400, f"{where} is empty; send the bytes of an image file")
    try:
        with open_image(io.BytesIO(content), max_pixels) as image:
            if image.format != "MPO" and getattr(image, "is_animated", False):  # MPO: photographs with a preview
                raise RequestError(422, f"{where} has several frames; send one frame as a separate image")
            as_it_is = exact and image.size == (about.size[2], about.size[1])
            return to_square(image, image.width if as_it_is else resized_side(about))
    except RequestError:
        raise
    except TooLargeError:
        raise _too_large(where, max_pixels) from None
    except UnidentifiedImageError:
        raise RequestError(415, f"{where} is not an image of a supported format; send {LISTED}") from None
    except Exception as error:  # a damaged file can raise nearly anything in PIL
        raise RequestError(422, f"{where} cannot be decoded ({quotable(first_line(error))}); save it again") from error


def _from_base64(text: str, where: str) -> bytes:
    """Decode base64, also after the header of a data URL."""
    data = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(422, f"{where} is not base64; encode the bytes of an image file") from None


def _too_large(where: str, max_pixels: int) -> RequestError:
    return RequestError(413, f"{where} has more than {max_pixels:,} pixels; send a smaller one")


def _where(number: int, upload: Upload, count: int) -> str:
    which = f"image {number} of {count}" if count > 1 else "the image"
    return f"{which} ({quotable(upload.name)})" if upload.name else which
