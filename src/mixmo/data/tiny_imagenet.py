"""Tiny ImageNet (Stanford CS231n), from the folder in which it is distributed; its labelled validation set is the test.

tiny-imagenet-200/wnids.txt, words.txt, train/WNID/images/*.JPEG, val/val_annotations.txt, val/images/*.JPEG
"""

from collections import Counter
from pathlib import Path

from mixmo.data.catalog import DATASETS, existing, how_to_get
from mixmo.data.decode import Sample
from mixmo.data.folder import in_class_folders, listed_split
from mixmo.data.types import Dataset
from mixmo.utils.errors import UserError

FOLDER = "tiny-imagenet-200"
SIZE = 64
TRAIN_EACH, TEST_EACH = 500, 50


@DATASETS.add("tiny-imagenet")
def tiny_imagenet(root: Path, train: bool = True) -> Dataset:
    """Tiny ImageNet, 64x64 colour, 200 classes, 100,000 train and 10,000 test images; in ROOT/tiny-imagenet-200.

    Normalised by 0.5 and 0.5, as in the published runs. Decoded once; later starts read a cache beside the files.
    """
    return read(root, TRAIN_EACH if train else 0)


def read(root: Path, train_each: int = TRAIN_EACH, test_each: int = TEST_EACH) -> Dataset:
    """Read the data set below `root`, which must have so many images per class; with 0, none is read."""
    folder = existing(FOLDER, "tiny-imagenet", root)
    again = f"delete {folder}, and {how_to_get('tiny-imagenet', root)}"
    wnids = sorted(_lines("wnids.txt", root))
    words = dict(line.split("\t", 1) for line in _lines("words.txt", root) if "\t" in line)
    train = in_class_folders(folder / "train") if train_each and (folder / "train").is_dir() else []
    test = [
        Sample(str(folder / "val" / "images" / fields[0]), fields[1])
        for line in _lines("val/val_annotations.txt", root)
        if len(fields := line.split("\t")) > 1  # file, WordNet id, bounding box
    ]
    for where, samples, each in (("train", train, train_each), ("val/val_annotations.txt", test, test_each)):
        counts = Counter(sample.label for sample in samples)
        for wnid in [*wnids, *counts]:
            count, wanted = counts[wnid], each if wnid in wnids else 0
            if count != wanted:
                raise UserError(f"{folder / where} has {count} images of class {wnid} instead of {wanted}; {again}")
    return Dataset(
        name="tiny-imagenet",
        train=listed_split(folder, "train", train, wnids, SIZE),
        test=listed_split(folder, "val", test, wnids, SIZE),
        classes=tuple(words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )


def _lines(name: str, root: Path) -> list[str]:
    path = existing(f"{FOLDER}/{name}", "tiny-imagenet", root)
    return path.read_text(encoding="utf-8", errors="replace").splitlines()
