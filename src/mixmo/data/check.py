"""Verify a data set on disk: counts, classes, checksums."""

import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path

from mixmo.data import cifar, corrupted
from mixmo.data.decode import SkippedImages
from mixmo.data.registry import DATASETS, present, remedy
from mixmo.errors import UserError, unknown

CIFARS = {layout.name: layout for layout in (cifar.CIFAR10, cifar.CIFAR100)}
CORRUPTED = {"cifar10-c": "CIFAR-10-C", "cifar100-c": "CIFAR-100-C"}


def check(name: str, root: Path) -> list[str]:
    """What is wrong with data set `name` below `root`, a sentence a fault; empty if all is well.

    Everything is read, Tiny ImageNet decoded too (and cached), so that training finds what this has seen.
    """
    if name not in DATASETS and name not in CORRUPTED:
        raise unknown("data set", name, [*DATASETS, *CORRUPTED])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            faults = list(_corrupted(name, root) if name in CORRUPTED else _registered(name, root))
        except UserError as error:
            faults = [str(error)]
    return faults + [str(warning.message) for warning in caught if issubclass(warning.category, SkippedImages)]


def md5(path: Path) -> str:
    """The checksum that the data sets' publishers give."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _registered(name: str, root: Path) -> Iterator[str]:
    if name in CIFARS:
        present(root / CIFARS[name].folder, name, root)
        for path, original in cifar.checksums(root, CIFARS[name]):
            if path.is_file() and md5(path) != original:
                yield (
                    f"{path} is not the original file (its md5 is {md5(path)} and should be {original}): written anew, "
                    f"or altered; for the original, delete {path.parent}, and {remedy(name, root)}"
                )
    try:
        DATASETS[name](root)
    except UserError as error:
        yield str(error)


def _corrupted(name: str, root: Path) -> Iterator[str]:
    folder = present(root / CORRUPTED[name], name, root)
    wrong = f"delete {folder}, and {remedy(name, root)}"
    wanted = {*corrupted.COMMON, *corrupted.EXTRA}
    found = {path.stem for path in folder.glob("*.npy")} - {"labels"}
    for missing in sorted(wanted - found):
        yield f"{folder / missing}.npy is missing; {wrong}"
    for foreign in sorted(found - wanted):
        yield f"{folder / foreign}.npy is not one of the {len(wanted)} corruptions; remove it"
    sizes = {len(split.labels) for _, _, split in corrupted.corrupted(folder)}
    if sizes != {corrupted.TEST_IMAGES}:
        yield f"{folder} has {max(sizes)} images a severity instead of {corrupted.TEST_IMAGES}; {wrong}"
