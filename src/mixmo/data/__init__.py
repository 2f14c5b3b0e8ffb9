"""One file a data set: a name -> two splits of uint8 images and int64 labels, resident on the device."""

from pathlib import Path

import torch

from mixmo.data import cifar, digits, tiny_imagenet  # noqa: F401  importing a reader registers it
from mixmo.data.registry import DATASETS, Loader, where
from mixmo.types import Dataset, Split

__all__ = ["DATASETS", "Loader", "load"]


def load(name: str, root: Path | None = None, device: torch.device | str = "cpu") -> Dataset:
    """Data set `name`, read below the data directory `root` (else $MIXMO_DATA, else `data`) and put on `device`.

    >>> digits = load("digits")
    >>> digits.train.images.shape, digits.train.images.dtype, len(digits.classes)
    (torch.Size([1437, 8, 8, 1]), torch.uint8, 10)
    """
    dataset = DATASETS[name](where(root))
    return dataset._replace(train=_on(device, dataset.train), test=_on(device, dataset.test))


def _on(device: torch.device | str, split: Split) -> Split:
    return Split(split.images.to(device), split.labels.to(device))
