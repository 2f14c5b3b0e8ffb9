"""CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, 2019): a test set under 19 corruptions of 5 severities.

One .npy per corruption holds the whole test set at severity 1, then at severity 2, and so on; labels.npy likewise. In a
generated set (`mixmo data corrupt`), severities.txt lists the severities, if not all five.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from mixmo.data.npy import mapped
from mixmo.data.types import Split
from mixmo.utils.errors import UserError

SEVERITIES = (1, 2, 3, 4, 5)
LEVELS = "severities.txt"
TEST_IMAGES = 10_000  # of the published sets; the reader takes any number
SHAPE = (32, 32, 3)
COMMON = [  # the usual 15
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
]
EXTRA = ["speckle_noise", "gaussian_blur", "spatter", "saturate"]
REMEDY = "`mixmo data get cifar10-c --to DIR`, or cifar100-c, downloads the original files"


class Cell(NamedTuple):
    """The test set under one corruption of one severity."""

    name: str
    severity: int
    path: Path
    place: int  # of the severity in the file, from 0
    labels: torch.Tensor

    @property
    def split(self) -> Split:
        """Map the images into memory: anew at each call, so that no more than one cell stays in memory."""
        part = slice(self.place * len(self.labels), (self.place + 1) * len(self.labels))
        return Split(torch.from_numpy(_open(self.path)[part]), self.labels)


def corrupted(folder: Path) -> list[Cell]:
    """List every corruption in `folder`, by name, at every severity in turn.

    Args:
        folder: CIFAR-10-C, CIFAR-100-C, or what `mixmo data corrupt` wrote.

    Returns:
        list[Cell]: Corruption, severity, images and labels; the images are read when they are used.

    Raises:
        UserError: If a file is missing or damaged; all are checked at once, not after an hour of scoring.
    """
    severities = _severities(folder)
    labels = _open(folder / "labels.npy")
    count, repeats = len(labels) // len(severities), len(severities)
    if labels.dtype.kind not in "iu" or not count or not np.array_equal(labels, np.tile(labels[:count], repeats)):
        raise UserError(f"{folder / 'labels.npy'} must hold the same labels for {repeats} severities; {REMEDY}")
    labels_N = torch.from_numpy(labels[:count].astype(np.int64))
    return [
        Cell(path.stem, severity, path, place, labels_N)
        for path in _files(folder, len(labels))
        for place, severity in enumerate(severities)
    ]


def _severities(folder: Path) -> tuple[int, ...]:
    path = folder / LEVELS
    if not path.is_file():
        return SEVERITIES
    words = path.read_text(errors="replace").split()
    severities = tuple(severity for severity in SEVERITIES if str(severity) in words)
    if not severities or [str(severity) for severity in severities] != words:
        raise UserError(f"{path} must list the severities in the files, such as '1 3 5'; correct it")
    return severities


def _files(folder: Path, count: int) -> list[Path]:
    paths = [path for path in sorted(folder.glob("*.npy")) if path.name != "labels.npy"]
    if not paths:
        raise UserError(f"{folder} has no .npy file of a corruption; {REMEDY}")
    for path in paths:
        images = _open(path)
        if images.dtype != np.uint8 or images.shape != (count, *SHAPE):
            raise UserError(f"{path} must hold uint8 {(count, *SHAPE)}, not {images.dtype} {images.shape}; {REMEDY}")
    return paths


def _open(path: Path) -> np.ndarray:
    try:
        return mapped(path)
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is missing, truncated or not a .npy array ({error}); {REMEDY}") from None
