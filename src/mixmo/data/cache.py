"""Cache a decoded image set beside its files, FOLDER/.mixmo-cache/NAME-STAMP/images.npy and kept.npy.

The stamp is a hash of the files' names, sizes and times: after a change there is another folder, and the old one goes.
"""

import hashlib
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from mixmo.data.decode import Decoded, Sample
from mixmo.storage.files import staging_folder
from mixmo.utils.errors import UserError
from mixmo.utils.progress import track

VERSION = 4  # of the format and of how images are decoded


def fingerprint(folder: Path, samples: Sequence[Sample]) -> str:
    """Hash the files' names, sizes and times; moving all of `folder` does not change it."""
    digest = hashlib.sha256(f"mixmo cache {VERSION}\n".encode())
    above = f"{folder}{os.sep}"
    for path, _ in track(samples, f"listing the files in {folder}"):
        try:
            status = os.stat(path)
            state = f"{status.st_size}\0{status.st_mtime_ns}" if os.access(path, os.R_OK) else "denied"
        except OSError:
            state = "missing"
        digest.update(os.fsencode(f"{path.removeprefix(above)}\0{state}\n"))
    return digest.hexdigest()[:16]


def cached(folder: Path, name: str, stamp: str, shape: Sequence[int], build: Callable[[], Decoded]) -> Decoded:
    """Return the decoded set `name` of `folder`, memory-mapped from its cache, or built and then cached.

    `shape` is (D, size, size, 3) of all images. A cache that cannot be written gives a warning.
    """
    path = folder / ".mixmo-cache" / f"{name}-{stamp}"
    found = _read(path, shape)
    if found is not None:
        return found
    built = build()
    try:
        _write(path, name, built)
    except UserError as error:
        warnings.warn(f"{error}; until then {name} is decoded at every start", stacklevel=2)
    return _read(path, shape) or built


def _read(path: Path, shape: Sequence[int]) -> Decoded | None:
    """Read a cache; None if it is missing or damaged."""
    try:  # copy-on-write, as torch needs writable memory
        images, kept = (np.load(path / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in Decoded._fields)
    except Exception:  # numpy reads the header as a piece of Python: a SyntaxError or nearly anything
        return None
    whole = images.dtype == np.uint8 and images.shape == (kept.size, *shape[1:]) and kept.dtype == np.int64
    return Decoded(images, kept) if whole else None


def _write(path: Path, name: str, built: Decoded) -> None:
    with staging_folder(path.with_name(name)) as fresh:
        for part, array in built._asdict().items():
            np.save(fresh / f"{part}.npy", array)
            with (fresh / f"{part}.npy").open("rb") as file:
                os.fsync(file.fileno())  # a power loss could leave zeros, that is, black images
        for old in path.parent.glob(f"{name}-*"):
            shutil.rmtree(old, ignore_errors=True)
        fresh.rename(path)
