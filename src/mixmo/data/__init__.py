"""One file per data set: a name -> two splits of uint8 images and int64 labels, on the device or streamed to it."""

import inspect
import os

import torch

from mixmo.data import cifar, digits, folder, tiny_imagenet  # noqa: F401  importing a reader registers it
from mixmo.data.catalog import DATASETS, data_directory
from mixmo.data.decode import default_workers
from mixmo.data.stream import Files, room
from mixmo.data.types import Dataset, Split
from mixmo.utils.errors import UserError, unknown

__all__ = ["DATASETS", "load", "place"]


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
    stream: bool | None = None,
    workers: int | None = None,
    val: float = 0.0,
    train: bool = True,
) -> Dataset:
    """Load a data set and put it on a device.

    >>> digits = load("digits")
    >>> digits.train.images.shape, digits.train.images.dtype, len(digits.classes)
    (torch.Size([1437, 8, 8, 1]), torch.uint8, 10)

    Args:
        name: One of `DATASETS`, or `folder:PATH@SIZE` for a folder of images (data/folder.py).
        root: Data directory; by default $MIXMO_DATA, or else `data`.
        device: Where images and labels go.
        stream: Whether image files are read while training; by default if they take over half of the free memory.
        workers: Processes that decode a stream; by default one per core.
        val: Share of each class held out as the test set, for a folder without val/ and test/. The split depends on
            the names of the files only, so that runs of several seeds share a test set.
        train: Whether the training images are needed. If not, they are not decoded, or not even read.

    Raises:
        UserError: If the name is unknown, files are missing or damaged, or there is no test set.
    """
    in_folder, directory = name.startswith(folder.PREFIX), data_directory(root)
    if not in_folder and name not in DATASETS:
        raise unknown("data set", name, [*DATASETS, f"{folder.PREFIX}PATH@SIZE for your own images"])
    if not 0 <= val < 1 or (val and not in_folder):
        raise UserError(f"{name} with val = {val}: val is for folder:PATH only, a share of at least 0 and less than 1")
    if in_folder:
        dataset = folder.read(name, directory, val)
    else:
        reader = DATASETS[name]
        options = {"train": train} if "train" in inspect.signature(reader).parameters else {}
        dataset = reader(directory, **options)._replace(name=name)
    return place(dataset, device, stream, workers, train)


def place(
    dataset: Dataset,
    device: torch.device | str = "cpu",
    stream: bool | None = None,
    workers: int | None = None,
    train: bool = True,
) -> Dataset:
    """Put a data set on a device: image files that fit are decoded into memory, others are streamed; see `load`."""
    device = torch.device(device)
    left = room(device)
    placed = []
    for split in (dataset.train, dataset.test) if train else (dataset.test,):
        images, labels = split
        if isinstance(images, Files):
            if stream or (stream is None and images.nbytes > left):
                count = default_workers() if workers is None else workers
                placed.append(Split(images.to(device, count), labels.to(device)))
                continue
            left -= images.nbytes
            images, labels = images.decoded()
            empty = [
                dataset.classes[label] for label in sorted(set(range(len(dataset.classes))) - set(labels.tolist()))
            ]
            if empty and split is dataset.train:
                raise UserError(
                    f"{dataset.name}: no training image of class {', '.join(empty)} can be read; replace them"
                )
        placed.append(Split(images.to(device), labels.to(device)))
    return dataset._replace(train=placed[0] if train else dataset.train, test=placed[-1])
