"""Your own images: a folder of class folders (as ImageNet's), or a CSV of image paths and labels.

ROOT/train/CLASS/....jpg    ROOT/val/CLASS/....jpg  (or test/)
ROOT/train.csv              ROOT/val.csv            (or test.csv), with the columns path,label
"""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from mixmo.data.cache import cached, fingerprint
from mixmo.data.decode import Sample, decode_all, report
from mixmo.errors import UserError
from mixmo.types import Dataset, Split

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
RESIDENT_BYTES = 16 << 30  # the largest set that is decoded into memory
STATISTICS_OVER = 10_000  # images


def folder(root: Path, size: int) -> Dataset:
    """The images below `root`, each resized and cut to `size` x `size`; normalised by their own statistics."""
    train, test = samples(root, "train"), samples(root, "val", "test")
    classes = class_names(train)
    unknown = {sample.label for sample in test} - set(classes)
    if unknown:
        raise UserError(
            f"the test images in {root} have classes that its train images lack: {', '.join(sorted(unknown)[:5])}; "
            "add train images of them, or remove them"
        )
    train_split = resident(root, f"train-{size}", train, classes, size)
    mean, std = statistics(train_split.images)
    return Dataset(
        name=root.name,
        train=train_split,
        test=resident(root, f"test-{size}", test, classes, size),
        classes=classes,
        mean=mean,
        std=std,
    )


def samples(root: Path, *names: str) -> list[Sample]:
    """The samples listed by the first of these that exists: ROOT/NAME/ of class folders, or ROOT/NAME.csv."""
    for name in names:
        if (root / name).is_dir():
            return in_class_folders(root / name)
        if (root / f"{name}.csv").is_file():
            return in_csv(root / f"{name}.csv")
    wanted = " or ".join(f"{root / name}/ or {root / name}.csv" for name in names)
    raise UserError(f"{root} has no images: put class folders into {wanted} with the columns path,label")


def in_class_folders(path: Path) -> list[Sample]:
    """Every image file at any depth below each folder in `path`, the class being the folder's name; sorted."""
    found = []
    for label in sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith(".")):
        files = [
            os.path.join(where, name)
            for where, _, names in os.walk(path / label)
            for name in names
            if name.lower().endswith(EXTENSIONS) and not name.startswith(".")
        ]
        if not files:
            raise UserError(f"{path / label} has no images ({', '.join(EXTENSIONS)}); add some, or remove the folder")
        found += [Sample(file, label) for file in sorted(files)]
    if not found:
        raise UserError(f"{path} has no class folders; put the images of each class into a folder {path}/CLASS/")
    return found


def in_csv(path: Path) -> list[Sample]:
    """The rows `path,label` of a CSV; a relative path starts at the CSV's folder."""
    found = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if not {"path", "label"} <= set(rows.fieldnames or ()):
                raise UserError(f"{path} should begin with the line 'path,label' and begins with {rows.fieldnames}")
            for row in rows:
                if not row["path"] or not row["label"]:
                    raise UserError(f"{path}, line {rows.line_num}, lacks a path or a label; complete or remove it")
                found.append(Sample(os.path.join(path.parent, row["path"]), row["label"]))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a CSV file in UTF-8 ({error}); save it as one") from None
    if not found:
        raise UserError(f"{path} lists no images; add lines of the form 'cats/1.jpg,cat'")
    return found


def class_names(listed: Sequence[Sample]) -> tuple[str, ...]:
    """The labels that occur, sorted; as numbers if all of them are, so that label 10 is class 10.

    >>> class_names([Sample("a", "10"), Sample("b", "9"), Sample("c", "9")])
    ('9', '10')
    """
    labels = {sample.label for sample in listed}
    numbers = all(label.isdecimal() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbers else 0, label)))


def resident(root: Path, name: str, listed: Sequence[Sample], classes: Sequence[str], size: int) -> Split:
    """Decode the samples (once: the result is cached in `root`) into a split."""
    needed = len(listed) * size * size * 3
    if needed > RESIDENT_BYTES:
        raise UserError(
            f"the {len(listed):,} images of {name} in {root} take {needed / 2**30:.0f} GiB at {size}x{size}, "
            f"more than the {RESIDENT_BYTES / 2**30:.0f} GiB that are kept in memory; choose a smaller size"
        )
    what = f"{name} in {root}"
    decoded = cached(root, name, fingerprint(root, listed), lambda: decode_all(listed, size, what))
    report(listed, decoded, what)
    index = {label: number for number, label in enumerate(classes)}
    labels = np.array([index[sample.label] for sample in listed], dtype=np.int64)
    return Split(torch.from_numpy(decoded.images), torch.from_numpy(labels[decoded.kept]))


def statistics(images: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of pixels in [0, 1], over evenly spaced images if there are many."""
    some = images[:: max(1, len(images) // STATISTICS_OVER)].numpy()
    values = np.arange(256) / 255
    mean, std = [], []
    for channel in range(some.shape[-1]):
        share = np.bincount(some[..., channel].ravel(), minlength=256) / some[..., channel].size
        mean.append(float(share @ values))
        std.append(float(share @ (values - mean[-1]) ** 2) ** 0.5)
    return tuple(mean), tuple(std)
