"""CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, 2019): a test set under 19 corruptions of 5 severities.

One .npy a corruption holds the whole test set at severity 1, then at severity 2, and so on; labels.npy likewise.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from mixmo.errors import UserError
from mixmo.types import Split

SEVERITIES = 5
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


def corrupted(folder: Path) -> Iterator[tuple[str, int, Split]]:
    """Every corruption in `folder`, by name, at every severity from 1 to 5, memory-mapped.

    All files are checked before the first is handed out: a fault in the last one does not wait for an hour.
    """
    labels = _labels(folder)
    files = _files(folder, len(labels))
    return _each(files, torch.from_numpy(labels.astype(np.int64)))


def _each(files: dict[str, np.ndarray], labels: torch.Tensor) -> Iterator[tuple[str, int, Split]]:
    each = len(labels) // SEVERITIES
    for name, images in files.items():
        for severity in range(1, SEVERITIES + 1):
            part = slice((severity - 1) * each, severity * each)
            yield name, severity, Split(torch.from_numpy(images[part]), labels[part])


def _labels(folder: Path) -> np.ndarray:
    path = folder / "labels.npy"
    labels = _open(path)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels) or len(labels) % SEVERITIES:
        raise UserError(
            f"{path} should hold one integer an image for {SEVERITIES} severities and holds "
            f"{labels.dtype} {labels.shape}; {REMEDY}"
        )
    if (labels.reshape(SEVERITIES, -1) != labels[: len(labels) // SEVERITIES]).any():
        raise UserError(f"{path} does not repeat the same labels for each of {SEVERITIES} severities; {REMEDY}")
    return labels


def _files(folder: Path, count: int) -> dict[str, np.ndarray]:
    files = {path.stem: _open(path) for path in sorted(folder.glob("*.npy")) if path.name != "labels.npy"}
    if not files:
        raise UserError(f"{folder} has labels.npy and no .npy file of a corruption beside it; {REMEDY}")
    for name, images in files.items():
        if images.dtype != np.uint8 or images.shape != (count, *SHAPE):
            raise UserError(
                f"{folder / name}.npy should hold uint8 {(count, *SHAPE)}, as labels.npy has {count} labels, "
                f"and holds {images.dtype} {images.shape}; {REMEDY}"
            )
    return files


def _open(path: Path) -> np.ndarray:
    if not path.is_file():
        raise UserError(f"{path} is missing; {REMEDY}")
    try:  # copy-on-write, because torch wants to be allowed to write
        array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{path} is truncated or not a .npy array ({error}); {REMEDY}") from None
    return array
