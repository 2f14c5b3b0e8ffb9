"""The 1,797 handwritten digits of the UCI repository, embedded in the package: it needs no download.

Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, 1998, UCI Machine Learning Repository,
https://doi.org/10.24432/C50P49, licensed under CC BY 4.0 (`digits.LICENSE` beside this file). The file holds its test
part, as scikit-learn distributes it: 8x8 counts of black pixels, 0 to 16.
"""

from pathlib import Path

import numpy as np
import torch

from mixmo.data.catalog import DATASETS
from mixmo.data.types import Dataset, Split

FILE = Path(__file__).with_name("digits.npz")


@DATASETS.add("digits")
def digits(root: Path) -> Dataset:
    """UCI handwritten digits, 8x8 grey, 10 classes, 1,437 train and 360 test images; embedded, no files needed.

    The split is not random: of the samples sorted by class, and otherwise in their order, every fifth one, from the
    first, is a test sample. The writers of the test samples also wrote train samples.
    """
    del root
    with np.load(FILE, allow_pickle=False) as arrays:
        counts, labels = arrays["counts"], arrays["labels"]
    images = ((counts.astype(np.uint16) * 255 + 8) // 16).astype(np.uint8)[..., None]  # 0..16 -> 0..255, rounded
    by_class = np.argsort(labels, kind="stable")
    held_out = np.zeros(len(labels), dtype=bool)
    held_out[by_class[::5]] = True
    images_D, labels_D = torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))
    return Dataset(
        name="digits",
        train=Split(images_D[~held_out], labels_D[~held_out]),
        test=Split(images_D[held_out], labels_D[held_out]),
        classes=tuple("0123456789"),
        mean=(0.3058,),
        std=(0.3761,),
    )
