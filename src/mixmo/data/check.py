"""Verify a data set on disk: counts, classes, checksums."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mixmo.data import DATASETS, cifar, corrupted, load, tiny_imagenet
from mixmo.data.catalog import present, remedy
from mixmo.data.decode import SkippedImages
from mixmo.data.folder import PREFIX
from mixmo.data.stream import Files
from mixmo.storage.checksums import md5
from mixmo.utils.errors import UserError, unknown
from mixmo.utils.progress import Work

CIFARS = {layout.name: layout for layout in (cifar.CIFAR10, cifar.CIFAR100)}
CORRUPTED = {
    "cifar10-c": "CIFAR-10-C",
    "cifar100-c": "CIFAR-100-C",
    "cifar10-c-style": "cifar10-c-style",
    "cifar100-c-style": "cifar100-c-style",
}


class Findings(NamedTuple):
    """What `check` found."""

    summary: str  # what is there, in a line; empty if it cannot be read
    faults: list[str]  # what is wrong, a sentence each


def held(root: Path) -> list[str]:
    """The data sets that have a folder below `root`."""
    folders = {name: layout.folder for name, layout in CIFARS.items()}
    folders |= {"tiny-imagenet": tiny_imagenet.FOLDER, **CORRUPTED}
    return [name for name, folder in folders.items() if (root / folder).is_dir()]


def check(name: str, root: Path) -> Findings:
    """What is there of data set `name` below `root`, and what is wrong with it.

    Everything is read, images decoded too (and cached), so that training finds what this has seen.
    """
    if name not in DATASETS and name not in CORRUPTED and not name.startswith(PREFIX):
        raise unknown("data set", name, [*DATASETS, *CORRUPTED])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _corrupted(name, root) if name in CORRUPTED else _loaded(name, root)
    skipped = [str(warning.message) for warning in caught if issubclass(warning.category, SkippedImages)]
    return Findings(found.summary, found.faults + skipped)


def _loaded(name: str, root: Path) -> Findings:
    layout = CIFARS.get(name)
    faults = list(_altered(layout, root)) if layout else []
    try:
        dataset = load(name, root)
        for split in (dataset.train, dataset.test):
            if isinstance(split.images, Files):  # more than fits in memory
                with Work(f"decoding {split.images.name} in {split.images.root}", len(split.labels)) as work:
                    for batch in split.batches(256):
                        work.advance(len(batch.labels))
    except UserError as error:
        return Findings("", [*faults, str(error)])
    train, test = (f"{len(split.labels):,}" for split in (dataset.train, dataset.test))
    size = "x".join(str(side) for side in dataset.train.images.shape[1:])
    original = ", every file as published" if layout and not faults else ""
    text = f"{name}: {train} train and {test} test images of {size}, {len(dataset.classes)} classes{original}"
    return Findings(text, faults)


def _altered(layout: cifar.Layout, root: Path) -> Iterator[str]:
    for path, original in cifar.checksums(root, layout):
        if path.is_file() and (found := md5(path)) != original:
            yield (
                f"{path} is not the original file (its md5 is {found} and should be {original}): written anew, "
                f"or altered; for the original, delete {path.parent}, and {remedy(layout.name, root)}"
            )


def _corrupted(name: str, root: Path) -> Findings:
    faults = []
    wanted = {*corrupted.COMMON, *corrupted.EXTRA}
    wrong = f"delete {root / CORRUPTED[name]}, and {remedy(name, root)}"
    try:
        folder = present(root / CORRUPTED[name], name, root)
        found = {path.stem for path in folder.glob("*.npy")} - {"labels"}
        faults += [f"{folder / missing}.npy is missing; {wrong}" for missing in sorted(wanted - found)]
        for foreign in sorted(found - wanted):
            faults.append(f"{folder / foreign}.npy is not one of the {len(wanted)} corruptions; remove it")
        cells = corrupted.corrupted(folder)
    except UserError as error:
        return Findings("", [*faults, str(error)])
    images = len(cells[0].labels)
    if images != corrupted.TEST_IMAGES:
        faults.append(f"{folder} has {images} images a severity instead of {corrupted.TEST_IMAGES}; {wrong}")
    severities = ", ".join(str(severity) for severity in sorted({cell.severity for cell in cells}))
    return Findings(f"{name}: {len(found)} corruptions at severities {severities}, {images:,} images each", faults)
