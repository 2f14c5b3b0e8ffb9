"""CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, 2019): a test set under 19 corruptions of 5 severities.

One .npy per corruption holds the whole test set at severity 1, then at severity 2, and so on; labels.npy likewise. In a
generated set (`mixmo data corrupt`), severities.txt lists the severities, if not all five.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from mixmo.data.types import Split
from mixmo.utils.errors import UserError, first_line

SEVERITIES: tuple[int, ...] = (1, 2, 3, 4, 5)
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
    """List every corruption in `folder`, by name, at every severity in turn; all files are checked, none is read."""
    severities = _severities(folder / LEVELS)
    labels = _open(folder / "labels.npy")
    count, repeats, shape = len(labels) // len(severities), len(severities), (len(labels), *SHAPE)
    paths = [path for path in sorted(folder.glob("*.npy")) if path.name != "labels.npy"]
    same = count and labels.dtype.kind in "iu" and np.array_equal(labels, np.tile(labels[:count], repeats))
    if not same or not paths:
        raise UserError(f"{folder}/labels.npy must hold labels {repeats} times, beside a CORRUPTION.npy; {REMEDY}")
    labels_N = torch.from_numpy(labels[:count].astype(np.int64))
    for path in paths:
        images = _open(path)
        if images.dtype != np.uint8 or images.shape != shape:
            raise UserError(f"{path} must hold uint8 {shape}, not {images.dtype} {images.shape}; {REMEDY}")
    return [
        Cell(path.stem, severity, path, place, labels_N) for path in paths for place, severity in enumerate(severities)
    ]


def _severities(path: Path) -> tuple[int, ...]:
    if not path.is_file():
        return SEVERITIES
    words = path.read_text(encoding="utf-8", errors="replace").split()
    if not words or len(words) > len(SEVERITIES) or not {*words} <= {*map(str, SEVERITIES)}:
        raise UserError(f"{path} must list severities from 1 to 5; restore it, or make the set again")
    return tuple(map(int, words))


def _open(path: Path) -> np.ndarray:
    try:  # copy-on-write, as torch needs writable memory
        array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    except Exception as error:  # numpy reads the header as a piece of Python: a SyntaxError or nearly anything
        raise UserError(f"{path} is missing, truncated or not a .npy array ({first_line(error)}); {REMEDY}") from None
    return array
