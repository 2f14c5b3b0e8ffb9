"""Image files of the user, found and read in batches: what cannot be read is told, not replaced."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import UnidentifiedImageError
from torch import Tensor

from mixmo.augment.basic import centre, to_shape
from mixmo.data.decode import decode, default_workers
from mixmo.data.folder import image_files
from mixmo.models.metadata import About
from mixmo.utils.errors import UserError, first_line


class Read(NamedTuple):
    """A batch of files."""

    paths: list[str]  # of those that could be read
    images: Tensor  # uint8 (N, H, W, C), as the network sees them
    failed: list[tuple[str, str]]  # the others, and why


def find_images(paths: Sequence[Path]) -> Iterator[str]:
    """Each file as it is, and the image files at any depth in each folder, sorted folder by folder; one at a time."""
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist; give image files, or folders of them")
        yield from image_files(path) if path.is_dir() else [str(path)]


def read_images(paths: Iterable[str], about: About, count: int) -> Iterator[Read]:
    """The images, `count` at a time, prepared as those that the network was trained on; the next are read meanwhile.

    Threads decode them: PIL works outside the interpreter's lock. Two batches are in memory at most.
    """
    channels, height, width = about.size
    if height != width:
        raise UserError(
            f"the network sees {height} x {width} pixels, and files are only cut to squares; give mixmo.predict tensors"
        )
    side = about.resize or height
    left = iter(paths)
    waiting: deque[list[tuple[str, Future[np.ndarray]]]] = deque()
    with ThreadPoolExecutor(default_workers()) as pool:
        while True:
            chunk = list(islice(left, count))
            if chunk:
                waiting.append([(path, pool.submit(decode, path, side)) for path in chunk])
            if waiting and (len(waiting) > 1 or not chunk):
                read = _collect(waiting.popleft())
                if read.paths:
                    read = read._replace(images=to_shape(centre(read.images, height), channels, height, width))
                yield read
            elif not chunk:
                return


def _collect(batch: list[tuple[str, Future[np.ndarray]]]) -> Read:
    """The images as they were decoded."""
    paths, images, failed = [], [], []
    for path, future in batch:
        try:
            images.append(torch.from_numpy(future.result().copy()))
            paths.append(path)
        except Exception as error:  # a damaged file can raise nearly anything in PIL
            failed.append((path, _reason(path, error)))
    return Read(paths, torch.stack(images) if images else torch.empty(0, 0, 0, 0, dtype=torch.uint8), failed)


def _reason(path: str, error: Exception) -> str:
    """In a few words, without the path."""
    if isinstance(error, UnidentifiedImageError):
        return "is not an image"
    text = getattr(error, "strerror", None) or first_line(error)
    return f"cannot be read ({text})".replace(path, "it")
