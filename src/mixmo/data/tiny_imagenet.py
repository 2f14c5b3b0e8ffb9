"""Tiny ImageNet (Stanford CS231n), from the folder in which it is distributed; its labelled validation set is the test.

tiny-imagenet-200/wnids.txt, words.txt, train/WNID/images/*.JPEG, val/val_annotations.txt, val/images/*.JPEG
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mixmo.data.catalog import DATASETS, present, remedy
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
    """The data set below `root`, which must have so many train and test images a class; 0 are not looked for."""
    folder = present(root / FOLDER, "tiny-imagenet", root)
    wrong = f"delete {folder}, and {remedy('tiny-imagenet', root)}"
    wnids = sorted(_lines(folder / "wnids.txt", wrong))
    train, test = _train(folder, wrong) if train_each else [], _test(folder, wrong)
    _count(train, wnids, train_each, folder / "train", wrong)
    _count(test, wnids, test_each, folder / "val" / "val_annotations.txt", wrong)
    return Dataset(
        name="tiny-imagenet",
        train=listed_split(folder, "train", train, wnids, SIZE),
        test=listed_split(folder, "val", test, wnids, SIZE),
        classes=_class_names(folder / "words.txt", wnids, wrong),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )


def _train(folder: Path, wrong: str) -> list[Sample]:
    if not (folder / "train").is_dir():
        raise UserError(f"{folder / 'train'} is missing; {wrong}")
    return in_class_folders(folder / "train")


def _test(folder: Path, wrong: str) -> list[Sample]:
    annotations = folder / "val" / "val_annotations.txt"
    listed = []
    for number, line in enumerate(_lines(annotations, wrong), 1):
        fields = line.split("\t")  # file, WordNet id, bounding box
        if len(fields) < 2:
            raise UserError(f"{annotations}, line {number}, is not a file name and a class; {wrong}")
        listed.append(Sample(str(folder / "val" / "images" / fields[0]), fields[1]))
    return listed


def _count(listed: Sequence[Sample], wnids: Sequence[str], each: int, where: Path, wrong: str) -> None:
    counts = Counter(sample.label for sample in listed)
    for wnid in [*wnids, *counts]:
        expected = each if wnid in wnids else 0
        if counts[wnid] != expected:
            raise UserError(f"{where} has {counts[wnid]} images of class {wnid} instead of {expected}; {wrong}")


def _class_names(path: Path, wnids: Sequence[str], wrong: str) -> tuple[str, ...]:
    """The first of the words for each WordNet id."""
    words = dict(line.split("\t", 1) for line in _lines(path, wrong) if "\t" in line)
    missing = [wnid for wnid in wnids if wnid not in words]
    if missing:
        raise UserError(f"{path} has no words for class {missing[0]}; {wrong}")
    return tuple(words[wnid].split(",")[0].strip() for wnid in wnids)


def _lines(path: Path, wrong: str) -> list[str]:
    if not path.is_file():
        raise UserError(f"{path} is missing; {wrong}")
    return path.read_text(encoding="utf-8", errors="replace").splitlines()
