"""CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, 2019): a test set under 19 corruptions of 5 severities.

One .npy a corruption holds the whole test set at severity 1, then at severity 2, and so on; labels.npy likewise. In a
generated set (`mixmo data corrupt`), severities.txt says which severities there are, if not all five.
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
REMEDY = "`mixmo data get cifar10-c --to DIR`, or cifar100-c, fetches the original files"


class Cell(NamedTuple):
    """The test set under one corruption of one severity."""

    name: str
    severity: int
    path: Path
    place: int  # of the severity in the file, from 0
    labels: torch.Tensor

    @property
    def split(self) -> Split:
        """Memory-mapped anew at each call: with it goes what was read, and the memory used stays that of one cell."""
        part = slice(self.place * len(self.labels), (self.place + 1) * len(self.labels))
        return Split(torch.from_numpy(_open(self.path)[part]), self.labels)


def corrupted(folder: Path) -> list[Cell]:
    """Every corruption in `folder`, by name, at every severity in turn.

    All files are checked before the first is handed out: a fault in the last one does not wait for an hour.
    """
    severities = _severities(folder)
    labels = _labels(folder, len(severities))
    labels_N = torch.from_numpy(labels[: len(labels) // len(severities)].astype(np.int64))
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
    severities = tuple(severity for word in words for severity in SEVERITIES if word == str(severity))
    if len(severities) != len(words) or list(severities) != sorted(set(severities)) or not severities:
        raise UserError(
            f"{path} should list the severities in the files, such as '1 3 5', and says {' '.join(words)[:40]!r}; "
            "correct it, or remove it if there are all five"
        )
    return severities


def _labels(folder: Path, severities: int) -> np.ndarray:
    path = folder / "labels.npy"
    labels = _open(path)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels) or len(labels) % severities:
        raise UserError(
            f"{path} should hold one integer an image for {severities} severities and holds "
            f"{labels.dtype} {labels.shape}; {REMEDY}"
        )
    if (labels.reshape(severities, -1) != labels[: len(labels) // severities]).any():
        raise UserError(f"{path} does not repeat the same labels for each of {severities} severities; {REMEDY}")
    return labels


def _files(folder: Path, count: int) -> list[Path]:
    paths = [path for path in sorted(folder.glob("*.npy")) if path.name != "labels.npy"]
    if not paths:
        raise UserError(f"{folder} has labels.npy and no .npy file of a corruption beside it; {REMEDY}")
    for path in paths:
        images = _open(path)
        if images.dtype != np.uint8 or images.shape != (count, *SHAPE):
            raise UserError(
                f"{path} should hold uint8 {(count, *SHAPE)}, as labels.npy has {count} labels, "
                f"and holds {images.dtype} {images.shape}; {REMEDY}"
            )
    return paths


def _open(path: Path) -> np.ndarray:
    if not path.is_file():
        raise UserError(f"{path} is missing; {REMEDY}")
    try:
        return mapped(path)
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is truncated or not a .npy array ({error}); {REMEDY}") from None
