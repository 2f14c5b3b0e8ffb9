"""One file per data set: a name -> two splits of uint8 images and int64 labels, on the device or streamed to it."""

import os

import torch

from mixmo.data import cifar, digits, folder, tiny_imagenet  # noqa: F401  importing a reader registers it
from mixmo.data.catalog import DATASETS, data_directory, read
from mixmo.data.decode import default_workers
from mixmo.data.stream import Files, room
from mixmo.data.types import Dataset, Split
from mixmo.utils.errors import UserError

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
        stream: Whether image files are read while training instead of decoded into memory; by default if they take
            more than half of the free memory.
        workers: Processes that decode a stream; by default one per core.
        val: Share of each class held out as the test set, for a folder without val/ and test/. The split depends on
            the names of the files only, so that runs of several seeds share a test set.
        train: Whether the training images are needed. If not, they are not decoded, or not even read.

    Returns:
        Dataset: The training and the test split, the names of the classes and the normalisation.

    Raises:
        UserError: If the name is unknown, files are missing or damaged, or there is no test set.
    """
    if not 0 <= val < 1:
        raise UserError(f"val = {val}; give a share of the images from 0 up to, but not including, 1")
    if name.startswith(folder.PREFIX):
        dataset = folder.read(name, data_directory(root), val)
    elif val:
        raise UserError(f"val = {val} is for folder:PATH only; {name} has a test set: leave it out")
    else:
        dataset = read(name, data_directory(root), train)
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
            if split is dataset.train:
                _check_classes(dataset, labels)
        placed.append(Split(images.to(device), labels.to(device)))
    return dataset._replace(train=placed[0] if train else dataset.train, test=placed[-1])


def _check_classes(dataset: Dataset, labels: torch.Tensor) -> None:
    counts = torch.bincount(labels, minlength=len(dataset.classes)).tolist()
    empty = [label for label, count in zip(dataset.classes, counts, strict=True) if not count]
    if empty:
        raise UserError(f"{dataset.name}: no training image can be read of class {', '.join(empty)}; replace the files")
