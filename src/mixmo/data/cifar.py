"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) from the folders of Python pickles in which they are distributed."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mixmo.data import pickles
from mixmo.data.catalog import DATASETS, existing, how_to_get
from mixmo.data.types import Dataset, Split
from mixmo.storage.checksums import md5
from mixmo.utils.errors import UserError, first_line

SIDE = 32
# What the published runs used for BOTH data sets: the CIFAR-10 means 125.3, 123.0 and 113.9 of 255, and the customary
# "standard deviations", which are averages of those of single images (the true ones are 0.2470, 0.2435, 0.2616).
MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
STD = (0.2023, 0.1994, 0.2010)


class Layout(NamedTuple):
    """The files of a CIFAR data set, with the md5 of the original ones.

    `contents` has the sha256 of what a file holds, however it is pickled: pixels and labels, or class names.
    """

    name: str
    folder: str
    train: dict[str, str]
    test: dict[str, str]
    meta: dict[str, str]
    label_key: str
    class_key: str
    train_images: int
    test_images: int
    contents: dict[str, str]

    @property
    def md5(self) -> dict[str, str]:
        return self.train | self.test | self.meta


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
    train_images=50_000,
    test_images=10_000,
    contents={
        "data_batch_1": "ba52cb2d72c412975d7556bb26bd094956f1c002d1937053f6f1252f2ac17114",
        "data_batch_2": "350ff9000489d02f2568c0dcf4912ffdbae9e50932147905fb1b8159ad54f0ac",
        "data_batch_3": "a2b8653fc457df407af6c38b7e0d1a12530f3b5f81fce9f81516efd065daf722",
        "data_batch_4": "133e6292c377755074c305db8a684d48d5397372cb0aba34f52b4335eab35d97",
        "data_batch_5": "eb08cdc11fd1267ef871cf4790f193684b3f556d13317be68f4eb374a078ea87",
        "test_batch": "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
        "batches.meta": "bb3914949cecedee6d1257f7f5fdb8f43fa3b2c8095fd1763161caf1b873fe59",
    },
)
CIFAR100 = Layout(
    name="cifar100",
    folder="cifar-100-python",
    train={"train": "16019d7e3df5f24257cddd939b257f8d"},
    test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
    label_key="fine_labels",
    class_key="fine_label_names",
    train_images=50_000,
    test_images=10_000,
    contents={
        "train": "4e50520a1125d045fade68001374cf6c74e360819dc08b7ecffe4e6c79e9b419",
        "test": "dc66669533e5da36cbeb472b8e2af54edcb17f1d9736fdbd5fede79d08f46b2f",
        "meta": "fbe8ad23bbaf24969898a386833b49c3aaf6ad1119d43f7b41cdea1b3416d578",
    },
)


@DATASETS.add("cifar10")
def cifar10(root: Path, train: bool = True) -> Dataset:
    """CIFAR-10, 32x32 colour, 10 classes, 50,000 train and 10,000 test images; in ROOT/cifar-10-batches-py."""
    return read(root, CIFAR10, train)


@DATASETS.add("cifar100")
def cifar100(root: Path, train: bool = True) -> Dataset:
    """CIFAR-100, 32x32 colour, 100 classes, 50,000 train and 10,000 test images; in ROOT/cifar-100-python."""
    return read(root, CIFAR100, train)


def read(root: Path, layout: Layout, train: bool = True) -> Dataset:
    """Read the data set below `root`; copies with the original pixels that were pickled anew are as good."""
    if not train:
        layout = layout._replace(train={}, train_images=0)
    folder = existing(layout.folder, layout.name, root)
    again = f"delete {folder}, and {how_to_get(layout.name, root)}"
    return Dataset(
        name=layout.name,
        train=_split([folder / name for name in layout.train], layout.train_images, layout, again),
        test=_split([folder / name for name in layout.test], layout.test_images, layout, again),
        classes=_class_names(folder / next(iter(layout.meta)), layout, again),
        mean=MEAN,
        std=STD,
    )


def _split(paths: list[Path], count: int, layout: Layout, again: str) -> Split:
    images = np.empty((count, SIDE, SIDE, 3), np.uint8)
    labels = np.empty(count, np.int64)
    each = count // max(1, len(paths))
    for index, path in enumerate(paths):
        part, contents = slice(index * each, (index + 1) * each), pickles.read(path, again)
        try:
            data = _pixels(contents["data"]).reshape(each, 3, SIDE, SIDE)
            labels[part] = _labels(contents[layout.label_key])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"{path} does not hold {each} images and labels ({first_line(error)}); {again}") from None
        _check_contents(path, (data, labels[part].astype(np.uint8)), layout, again)
        for channel in range(3):  # seven times faster than one transposing copy
            images[part, ..., channel] = data[:, channel]
    return Split(torch.from_numpy(images), torch.from_numpy(labels))


def _pixels(stored: object) -> np.ndarray:
    if not isinstance(stored, np.ndarray) or stored.dtype != np.uint8:
        raise TypeError("no array of bytes")
    return np.ascontiguousarray(stored)


def _labels(stored: object) -> np.ndarray:
    """Return labels as an array. A list of anything else than integers could become an array of any size."""
    if isinstance(stored, list) and all(type(label) is int for label in stored):
        return np.array(stored, np.int64)
    if not isinstance(stored, np.ndarray):
        raise TypeError("no list of labels")
    return stored.astype(np.int64)


def _class_names(path: Path, layout: Layout, again: str) -> tuple[str, ...]:
    names = pickles.read(path, again).get(layout.class_key)
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise UserError(f"{path} does not hold the class names; {again}")
    known = tuple(map(pickles.text, names))
    _check_contents(path, ("\n".join(known).encode(errors="surrogatepass"),), layout, again)
    return known


def _check_contents(path: Path, parts: Iterable[Any], layout: Layout, again: str) -> None:
    """Check that a file has the published pixels and labels, or is byte for byte the published file."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    same = layout.contents.get(path.name) in (None, digest.hexdigest())
    if not same and md5(path) != layout.md5[path.name]:
        raise UserError(f"{path} does not hold what was published, by its checksum; {again}")
