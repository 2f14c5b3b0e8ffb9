"""Decode image files: one, or all of a set in parallel into one uint8 array, without those that cannot be read."""

import os
import stat
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from mixmo.utils.errors import UserError, first_line
from mixmo.utils.progress import Work, track

CHUNK = 256  # samples handed to a thread at once
NAMED = 5  # unreadable files named in the warning
MOST_WORKERS = 32
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # no vector graphics, which are programs
LISTED = "JPEG, PNG, WebP, GIF, BMP, TIFF or PPM"
MOST_PIXELS = 50_000_000  # of an image; decoding takes up to 20 bytes each
LONGEST = 16  # ratio of the sides: only the middle of a longer image is resized, or it would fill the memory


class SkippedImages(UserWarning):
    """Warns that some images of a set cannot be read."""


class TooLargeError(ValueError):
    """An image has more pixels than are decoded."""


class Sample(NamedTuple):
    """An image file and its label."""

    path: str
    label: str


class Decoded(NamedTuple):
    """The images that could be read."""

    images: np.ndarray  # uint8 (D, size, size, 3)
    kept: np.ndarray  # int64 (D,): their positions in the list of samples


def decode(path: str, size: int) -> np.ndarray:
    """Decode an image to upright RGB, resize its shorter side to `size` and crop the centre: uint8 (size, size, 3).

    Sides are rounded as by torchvision's Resize and CenterCrop. Raises whatever PIL does on a bad file.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for ever
        raise ValueError("it is a folder, a pipe or a device")
    with open_image(path) as image:
        return to_square(image, size)


def open_image(file: str | BinaryIO, most_pixels: int = MOST_PIXELS) -> Image.Image:
    """Open an image, which is not decoded yet. Raises `TooLargeError` if it has more pixels, and whatever PIL does."""
    try:
        image = Image.open(file, formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise TooLargeError(f"it has more than {most_pixels:,} pixels, which is the most") from error
    if image.width * image.height > most_pixels:
        image.close()
        raise TooLargeError(f"it has {image.width} x {image.height} pixels, and {most_pixels:,} are the most")
    return image


def to_square(image: Image.Image, size: int) -> np.ndarray:
    """Do what `decode` does with an image that was opened but not decoded yet."""
    image.draft(None, (2 * size, 2 * size))  # a JPEG many times too large is decoded at a fraction of its size
    rgb = _rgb(image)
    if "exif" in image.info:  # reading it costs a fifteenth of decoding a small JPEG
        with suppress(Exception):  # metadata can be damaged in any way; the pixels are not
            ImageOps.exif_transpose(rgb, in_place=True)
    shorter = min(rgb.size)
    if max(rgb.size) > LONGEST * shorter:
        width, height = (min(side, LONGEST * shorter) for side in rgb.size)
        left, top = (rgb.width - width) // 2, (rgb.height - height) // 2
        rgb = rgb.crop((left, top, left + width, top + height))
    if rgb.size != (size, size):
        width, height = (size * side // shorter for side in rgb.size)
        left, top = round((width - size) / 2), round((height - size) / 2)
        rgb = rgb.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    return np.asarray(rgb)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        image.load()  # or a truncated file would go unnoticed
        return image
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):  # whose range is 16 bits
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits have no known range")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def decode_all(samples: Sequence[Sample], size: int, what: str) -> Decoded:
    """Decode every sample that can be read, in order, by threads: PIL releases the interpreter's lock."""
    images = np.empty((len(samples), size, size, 3), np.uint8)
    kept = np.zeros(len(samples), dtype=bool)

    def work(start: int) -> int:
        stop = min(start + CHUNK, len(samples))
        for index in range(start, stop):
            with suppress(Exception):  # PIL raises nearly anything on a damaged file; `report` names it
                images[index] = decode(samples[index].path, size)
                kept[index] = True
        return stop - start

    pool = ThreadPoolExecutor(default_workers())
    try:
        with Work(f"decoding {what}", len(samples)) as decoding:
            for done in pool.map(work, range(0, len(samples), CHUNK)):
                decoding.advance(done)
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C stops here and not after the last image
    positions = np.flatnonzero(kept)
    for target, source in enumerate(positions):  # in place: a second array might not fit
        if target < source:
            images[target] = images[source]
    return Decoded(images[: len(positions)], positions)


def report(samples: Sequence[Sample], kept: np.ndarray, what: str, part: bool = False) -> None:
    """Warn of the samples that could not be read, all but `kept`; raise an error if none could, except of a `part`."""
    bad = np.setdiff1d(np.arange(len(samples)), kept)
    if not len(bad):
        return
    names = some([samples[index].path for index in bad])
    if len(bad) == len(samples) and not part:
        raise UserError(f"none of the {len(bad)} images of {what} can be read ({names}); check the files and the paths")
    message = f"{len(bad)} of the {len(samples)} images of {what} cannot be read and are skipped: {names}"
    warnings.warn(message, SkippedImages, stacklevel=2)


def some(paths: Sequence[str]) -> str:
    """Join the first few paths."""
    return ", ".join(paths[:NAMED]) + (", ..." if len(paths) > NAMED else "")


def unreadable(samples: Sequence[Sample], size: int, what: str) -> dict[str, str]:
    """Return the files that cannot be decoded, and why."""

    def fault(sample: Sample) -> str | None:
        try:
            decode(sample.path, size)
        except Exception as error:  # PIL raises nearly anything on a damaged file
            return first_line(error)
        return None

    found = {}
    with ThreadPoolExecutor(default_workers()) as pool:
        for sample, reason in zip(track(samples, f"decoding {what}"), pool.map(fault, samples), strict=True):
            if reason is not None:
                found[sample.path] = reason
    return found


def default_workers() -> int:
    """Return the number of cores that this process may use, at most 32."""
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
