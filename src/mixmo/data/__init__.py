"""One file a data set: a name -> two splits of uint8 images and int64 labels, on the device or streamed to it."""

import os

import torch

from mixmo.data import cifar, digits, folder, tiny_imagenet  # noqa: F401  importing a reader registers it
from mixmo.data.catalog import DATASETS, read, where
from mixmo.data.decode import default_workers
from mixmo.data.stream import Files, room
from mixmo.data.types import Dataset, Split

__all__ = ["DATASETS", "load", "place"]


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
    stream: bool | None = None,
    workers: int | None = None,
    train: bool = True,
) -> Dataset:
    """Data set `name`, read below the data directory `root` (else $MIXMO_DATA, else `data`) and put on `device`.

    The name is one of DATASETS, or `folder:PATH@SIZE` for a folder of images (data/folder.py). `stream`, `workers`
    and `train` are those of `place`.

    >>> digits = load("digits")
    >>> digits.train.images.shape, digits.train.images.dtype, len(digits.classes)
    (torch.Size([1437, 8, 8, 1]), torch.uint8, 10)
    """
    root = where(root)
    dataset = folder.read(name, root) if name.startswith(folder.PREFIX) else read(name, root, train)
    return place(dataset, device, stream, workers, train)


def place(
    dataset: Dataset,
    device: torch.device | str = "cpu",
    stream: bool | None = None,
    workers: int | None = None,
    train: bool = True,
) -> Dataset:
    """The data set ready to be used on `device`: image files that fit are decoded into memory, others are streamed.

    They fit if they take less than half of the free memory; `stream` chooses instead. `workers` processes decode a
    stream: by default one a core. With `train=False`, where only the test images are looked at, the others are left as
    they are: not decoded, or not even read.
    """
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
        placed.append(Split(images.to(device), labels.to(device)))
    return dataset._replace(train=placed[0] if train else dataset.train, test=placed[-1])
