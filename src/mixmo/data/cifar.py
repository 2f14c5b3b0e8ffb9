"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) from the folders of Python pickles in which they are distributed."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from mixmo.data import pickles
from mixmo.data.registry import DATASETS, present, remedy
from mixmo.errors import UserError
from mixmo.types import Dataset, Split

SIDE = 32
# What the published runs used for BOTH data sets: the CIFAR-10 means 125.3, 123.0 and 113.9 of 255, and the customary
# "standard deviations", which are averages of those of single images (the true ones are 0.2470, 0.2435, 0.2616).
MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
STD = (0.2023, 0.1994, 0.2010)


class Layout(NamedTuple):
    """Which files hold a CIFAR data set, with the md5 of the original ones."""

    name: str
    folder: str
    train: dict[str, str]
    test: dict[str, str]
    meta: dict[str, str]
    label_key: str
    class_key: str
    classes: int
    train_images: int
    test_images: int


CIFAR10 = Layout(
    name="cifar10",
    folder="cifar-10-batches-py",
    train={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    },
    test={"test_batch": "40351d587109b95175f43aff81a1287e"},
    meta={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
    label_key="labels",
    class_key="label_names",
    classes=10,
    train_images=50_000,
    test_images=10_000,
)
CIFAR100 = Layout(
    name="cifar100",
    folder="cifar-100-python",
    train={"train": "16019d7e3df5f24257cddd939b257f8d"},
    test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
    label_key="fine_labels",
    class_key="fine_label_names",
    classes=100,
    train_images=50_000,
    test_images=10_000,
)


@DATASETS.add("cifar10")
def cifar10(root: Path) -> Dataset:
    """CIFAR-10, 32x32 colour, 10 classes, 50,000 train and 10,000 test images; in ROOT/cifar-10-batches-py."""
    return read(root, CIFAR10)


@DATASETS.add("cifar100")
def cifar100(root: Path) -> Dataset:
    """CIFAR-100, 32x32 colour, 100 classes, 50,000 train and 10,000 test images; in ROOT/cifar-100-python."""
    return read(root, CIFAR100)


def read(root: Path, layout: Layout) -> Dataset:
    """The data set below `root`: structure, counts and value ranges are checked, checksums are not.

    Copies whose pixels are the original ones but whose pickles were written anew are common; `check` tells them apart.
    """
    folder = present(root / layout.folder, layout.name, root)
    wrong = f"delete {folder}, and {remedy(layout.name, root)}"
    return Dataset(
        name=layout.name,
        train=_split([folder / name for name in layout.train], layout.train_images, layout, wrong),
        test=_split([folder / name for name in layout.test], layout.test_images, layout, wrong),
        classes=_class_names(folder / next(iter(layout.meta)), layout, wrong),
        mean=MEAN,
        std=STD,
    )


def checksums(root: Path, layout: Layout) -> Iterator[tuple[Path, str]]:
    """Every file of the layout below `root`, with the md5 of the original one."""
    for name, md5 in (layout.train | layout.test | layout.meta).items():
        yield root / layout.folder / name, md5


def _split(paths: list[Path], count: int, layout: Layout, wrong: str) -> Split:
    images = np.empty((count, SIDE, SIDE, 3), np.uint8)
    labels = np.empty(count, np.int64)
    each = count // len(paths)
    for index, path in enumerate(paths):
        part = slice(index * each, (index + 1) * each)
        data, labels[part] = _batch(path, each, layout, wrong)
        for channel in range(3):  # seven times faster than one transposing copy
            images[part, ..., channel] = data.reshape(each, 3, SIDE, SIDE)[:, channel]
    sizes = np.bincount(labels, minlength=layout.classes)
    if sizes.min() != sizes.max():
        where = ", ".join(str(path) for path in paths)
        raise UserError(f"the classes in {where} have {sizes.min()} to {sizes.max()} images, not as many each; {wrong}")
    return Split(torch.from_numpy(images), torch.from_numpy(labels))


def _batch(path: Path, count: int, layout: Layout, wrong: str) -> tuple[np.ndarray, list[int]]:
    contents = _contents(path, wrong)
    data, labels = contents.get("data"), contents.get(layout.label_key)
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape == (count, 3 * SIDE * SIDE)):
        found = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise UserError(f"{path}: 'data' should be a uint8 ({count}, {3 * SIDE * SIDE}) array and is {found}; {wrong}")
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    if not (isinstance(labels, list) and len(labels) == count and all(type(label) is int for label in labels)):
        raise UserError(f"{path}: '{layout.label_key}' should be a list of {count} integers; {wrong}")
    if not (min(labels) >= 0 and max(labels) < layout.classes):
        raise UserError(
            f"{path}: '{layout.label_key}' should lie in 0..{layout.classes - 1} "
            f"and reach from {min(labels)} to {max(labels)}; {wrong}"
        )
    return data, labels


def _class_names(path: Path, layout: Layout, wrong: str) -> tuple[str, ...]:
    names = _contents(path, wrong).get(layout.class_key)
    if not (isinstance(names, list) and len({pickles.text(name) for name in names}) == layout.classes == len(names)):
        raise UserError(f"{path}: '{layout.class_key}' should be a list of {layout.classes} different names; {wrong}")
    return tuple(pickles.text(name) for name in names)


def _contents(path: Path, wrong: str) -> dict[str, object]:
    if not path.is_file():
        raise UserError(f"{path} is missing; {wrong}")
    return pickles.read(path, wrong)
