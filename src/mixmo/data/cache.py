"""Cache a decoded image set beside its files, so that the second start takes seconds.

    FOLDER/.mixmo-cache/NAME-STAMP/images.npy, kept.npy

The stamp is a hash of the files' names, sizes and times and of the format's version: after a change there is another
folder, and the old one, NAME-*, is removed. A folder is renamed into place when it is complete.
"""

import hashlib
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from mixmo.data.decode import Decoded, Sample
from mixmo.data.npy import mapped
from mixmo.utils.progress import track

VERSION = 4  # of the format and of how images are decoded
LEFTOVER = 3600  # seconds after which an unfinished folder belongs to a process that died


def fingerprint(folder: Path, samples: Sequence[Sample]) -> str:
    """Hash the files' names, sizes and times; moving all of `folder` does not change it."""
    digest = hashlib.sha256(f"mixmo cache {VERSION}\n".encode())
    above = f"{folder}{os.sep}"
    for path, _ in track(samples, f"listing the files in {folder}"):
        try:
            status = os.stat(path)
            digest.update(
                f"{path.removeprefix(above)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape")
            )
        except OSError:
            digest.update(f"{path.removeprefix(above)}\0missing\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def cached(
    folder: Path,
    name: str,
    stamp: str,
    shape: Sequence[int],
    build: Callable[[], Decoded],
    mended: Callable[[np.ndarray], bool] = lambda missing: False,
) -> Decoded:
    """Return the decoded set `name` of `folder`, memory-mapped from its cache, or built and then cached.

    `shape` is (D, size, size, 3) of all images. The set is built again if one of the missing images is `mended`: a new
    permission, or a disk that is back, does not change the stamp. A cache that cannot be written (a read-only folder, a
    full disk) gives a warning.
    """
    home = folder / ".mixmo-cache"
    path = home / f"{name}-{stamp}"
    found = _read(path, shape)
    if found is not None and not mended(np.setdiff1d(np.arange(shape[0]), found.kept)):
        return found
    built = build()
    try:
        _write(path, name, built)
    except OSError as error:
        found = _read(path, shape)
        if found is not None and len(found.kept) >= len(built.kept):  # another process was faster
            return found
        warnings.warn(
            f"{home} cannot be written ({error.strerror or error}), so {name} will be decoded again at the next start; "
            "free some space, or make the folder writable",
            stacklevel=2,
        )
        return built
    return _read(path, shape) or built


def _read(path: Path, shape: Sequence[int]) -> Decoded | None:
    """Read a cache; None if it is missing or damaged."""
    try:
        images, kept = mapped(path / "images.npy"), mapped(path / "kept.npy")
    except (OSError, ValueError):
        return None
    whole = images.dtype == np.uint8 and kept.dtype == np.int64 and kept.shape == images.shape[:1]
    if not whole or images.shape[1:] != tuple(shape[1:]):
        return None
    inside = (kept >= 0).all() and (kept < shape[0]).all() and (np.diff(kept) > 0).all()  # they choose the labels
    return Decoded(images, kept) if inside else None


def _write(path: Path, name: str, built: Decoded) -> None:
    home = path.parent
    home.mkdir(exist_ok=True)
    fresh = home / f".{path.name}-{secrets.token_hex(8)}"  # not the process id: containers share those
    try:
        fresh.mkdir()
        np.save(fresh / "images.npy", built.images)
        np.save(fresh / "kept.npy", built.kept)
        for written in fresh.iterdir():
            with written.open("rb") as file:
                os.fsync(file.fileno())  # a power loss could leave zeros, that is, black images
        for old in home.glob(f"{name}-*"):
            shutil.rmtree(old, ignore_errors=True)
        for old in home.glob(f".{name}-*"):
            if old != fresh and time.time() - old.stat().st_mtime > LEFTOVER:
                shutil.rmtree(old, ignore_errors=True)
        fresh.rename(path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
