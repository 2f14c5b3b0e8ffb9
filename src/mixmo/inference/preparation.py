"""Prepare images as in training: files are read in batches, uint8 images resized and cropped."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import UnidentifiedImageError
from torch import Tensor

from mixmo.augment.basic import centre, to_shape
from mixmo.data.decode import LISTED, decode, default_workers
from mixmo.data.folder import image_files
from mixmo.models.metadata import About
from mixmo.utils.errors import UserError, first_line


class Read(NamedTuple):
    """A batch of files."""

    paths: list[str]  # of those that could be read
    images: Tensor  # uint8 (N, H, W, C), resized and cropped
    failed: list[tuple[str, str]]  # the others, with the reason


def find_images(paths: Sequence[Path]) -> Iterator[str]:
    """Yield each file, and the image files at any depth in each folder, sorted folder by folder."""
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist; give image files, or folders of them")
        yield from image_files(path) if path.is_dir() else [str(path)]


def read_images(paths: Iterable[str], about: About, count: int) -> Iterator[Read]:
    """Yield images `count` at a time, resized and cropped as in training; the next are read meanwhile.

    Threads decode them: PIL works outside the interpreter's lock. Two batches are in memory at most.
    """
    channels, height, width = about.size
    side = resized_side(about)
    left = iter(paths)
    with ThreadPoolExecutor(default_workers()) as pool:

        def submit() -> list[tuple[str, Future[np.ndarray]]]:
            return [(path, pool.submit(decode, path, side)) for path in islice(left, count)]

        ahead = submit()
        while ahead:
            batch, ahead = ahead, submit()
            read = _collect(batch)
            batch.clear()  # the decoded images: `read` holds copies
            if read.paths:
                read = read._replace(images=to_shape(centre(read.images, height), channels, height, width))
            yield read


def resize_and_crop(images_NHWC: Tensor, about: About) -> Tensor:
    """Return uint8 images in the network's size: the shorter side resized, the centre cropped, as files are.

    Images that have this size already are returned unchanged.

    >>> resize_and_crop(torch.zeros(2, 60, 90, 3, dtype=torch.uint8), About((3, 32, 32), (0.5,) * 3, (0.2,) * 3)).shape
    torch.Size([2, 32, 32, 3])
    """
    side, (height, width) = about.size[1], images_NHWC.shape[1:3]
    if (height, width) == about.size[1:]:
        return images_NHWC
    shorter, resized = min(height, width), resized_side(about)
    size = (resized * height // shorter, resized * width // shorter)
    x_NCHW = F.interpolate(images_NHWC.permute(0, 3, 1, 2).float(), size, mode="bilinear", antialias=True)
    top, left = (round((length - side) / 2) for length in size)
    return x_NCHW[:, :, top : top + side, left : left + side].round().to(torch.uint8).permute(0, 2, 3, 1)


def resized_side(about: About) -> int:
    _, height, width = about.size
    if height != width:
        raise UserError(f"images are cropped to squares only, not to the network's {height} x {width}; resize them")
    return about.resize or height


def _collect(batch: list[tuple[str, Future[np.ndarray]]]) -> Read:
    paths, images, failed = [], [], []
    for path, future in batch:
        try:
            images.append(torch.from_numpy(future.result().copy()))
            paths.append(path)
        except Exception as error:  # a damaged file can raise nearly anything in PIL
            failed.append((path, _reason(path, error)))
    return Read(paths, torch.stack(images) if images else torch.empty(0, 0, 0, 0, dtype=torch.uint8), failed)


def _reason(path: str, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"not an image of a supported format ({LISTED})"
    text = getattr(error, "strerror", None) or first_line(error)
    return f"cannot be read ({text})".replace(path, "it")
