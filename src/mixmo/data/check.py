"""Check a data set on disk: counts, classes, checksums, unreadable images."""

import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from mixmo.data import DATASETS, cifar, corrupted, load, tiny_imagenet
from mixmo.data import folder as folders
from mixmo.data.catalog import existing, how_to_get
from mixmo.data.decode import SkippedImages, unreadable
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
UNEVEN = 2  # times the images of the smallest class: a larger class is worth a remark


class Findings(NamedTuple):
    """The result of `check`."""

    summary: str  # what was found; empty if it cannot be read
    faults: list[str]  # one sentence each


def held(root: Path) -> list[str]:
    """Return the data sets that have a folder in `root`."""
    names = {name: layout.folder for name, layout in CIFARS.items()}
    names |= {"tiny-imagenet": tiny_imagenet.FOLDER, **CORRUPTED}
    return [name for name, folder in names.items() if (root / folder).is_dir()]


def check(name: str, root: Path) -> Findings:
    """Check one of `DATASETS` or `CORRUPTED`, or `folder:PATH@SIZE`; every image is read."""
    if name.startswith(folders.PREFIX):
        return _folder(name, root)
    if name in CORRUPTED:
        return _corrupted(name, root)
    if name not in DATASETS:
        raise unknown("data set", name, [*DATASETS, *CORRUPTED, f"{folders.PREFIX}PATH"])
    layout = CIFARS.get(name)
    faults = _altered(layout, root) if layout else []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dataset = load(name, root)
            for split in (dataset.train, dataset.test):
                if isinstance(split.images, Files):  # more than fits in memory
                    with Work(f"decoding {split.images.name} in {split.images.root}", len(split.labels)) as work:
                        for batch in split.batches(256):
                            work.advance(len(batch.labels))
    except UserError as error:
        return Findings("", [*faults, str(error)])
    faults += [str(warning.message) for warning in caught if issubclass(warning.category, SkippedImages)]
    train, test = (f"{len(split.labels):,}" for split in (dataset.train, dataset.test))
    size = "x".join(str(side) for side in dataset.train.images.shape[1:])
    original = ", every file as published" if layout and not faults else ""
    text = f"{name}: {train} train and {test} test images of {size}, {len(dataset.classes)} classes{original}"
    return Findings(text, faults)


def _altered(layout: cifar.Layout, root: Path) -> list[str]:
    folder = root / layout.folder
    again = f"delete {folder}, and {how_to_get(layout.name, root)}"
    return [
        f"{folder / name} is not the original file (its md5 is {found} and should be {original}); {again}"
        for name, original in layout.md5.items()
        if (folder / name).is_file() and (found := md5(folder / name)) != original
    ]


def _folder(name: str, root: Path) -> Findings:
    """Count the images per class and part, and find the files that cannot be decoded."""
    try:
        path, size, val = folders.parse(name, root)
        parts = folders.list_parts(path)
        if val:
            folders.read(name, root)
    except UserError as error:
        return Findings("", [str(error)])
    counts = {part: Counter(sample.label for sample in samples) for part, samples in parts.items()}
    classes = folders.class_names([sample for samples in parts.values() for sample in samples])
    faults = [
        f"{file} cannot be read ({reason}); replace or remove it"
        for part, samples in parts.items()
        for file, reason in unreadable(samples, size, f"{part}-{size} in {path}").items()
    ]
    if len(classes) == 1:
        faults.append(folders.one_class(path, classes[0]))
    if "train" in parts:
        faults += [f"class {label} has no training image" for label in classes if not counts["train"][label]]
    width = max(len("class"), *map(len, classes))
    rows = [f"{label:{width}}" + "".join(f"{counts[part][label]:>9,}" for part in parts) for label in classes]
    total = counts.get("train") or next(iter(counts.values()))
    small, large = (choose(classes, key=lambda label: total[label]) for choose in (min, max))
    sizes = " and ".join(f"{len(samples):,} {part}" for part, samples in parts.items())
    lines = [
        f"{path}: {sizes}{'' if 'images' in parts else ' images'}, {len(classes)} classes",
        f"{'class':{width}}" + "".join(f"{part:>9}" for part in parts),
        *rows,
    ]
    if total[small] < total[large]:
        hint = "; `mixmo train --balance loss` weights the classes equally" * (total[large] > UNEVEN * total[small])
        lines.append(f"smallest class: {small} ({total[small]:,}), largest class: {large} ({total[large]:,}){hint}")
    if "test" in parts:
        lines += [folders.untested(label) for label in classes if not counts["test"][label]]
    if len(parts) < len(folders.PARTS):
        lines.append(folders.no_split(path, parts))
    return Findings("\n".join(lines), faults)


def _corrupted(name: str, root: Path) -> Findings:
    expected, faults = {*corrupted.COMMON, *corrupted.EXTRA}, list[str]()
    try:
        folder = existing(CORRUPTED[name], name, root)
        again = f"delete {folder}, and {how_to_get(name, root)}"
        found = {path.stem for path in folder.glob("*.npy")} - {"labels"}
        faults += [f"{folder / missing}.npy is missing; {again}" for missing in sorted(expected - found)]
        faults += [f"{folder / other}.npy is not a known corruption; remove it" for other in sorted(found - expected)]
        cells = corrupted.corrupted(folder)
    except UserError as error:
        return Findings("", [*faults, str(error)])
    images = len(cells[0].labels)
    if images != corrupted.TEST_IMAGES:
        faults.append(f"{folder} has {images} images per severity instead of {corrupted.TEST_IMAGES}; {again}")
    severities = ", ".join(str(severity) for severity in sorted({cell.severity for cell in cells}))
    return Findings(f"{name}: {len(found)} corruptions at severities {severities}, {images:,} images each", faults)
