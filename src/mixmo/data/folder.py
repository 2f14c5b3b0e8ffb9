"""Your own images by the name `folder:PATH@SIZE`: class folders (as ImageNet's), or a CSV of image paths and labels.

PATH/train/CLASS/....jpg    PATH/val/CLASS/....jpg  (or test/)
PATH/train.csv              PATH/val.csv            (or test.csv), with the columns path,label
"""

import csv
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from mixmo.data.decode import Sample
from mixmo.data.stream import Files
from mixmo.data.types import Dataset, Split
from mixmo.utils.errors import UserError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
PREFIX = "folder:"
SIZE, SMALLEST, LARGEST = 224, 8, 4096  # pixels a side: without an @, at least, and at most
DIGITS = 18  # of a label that is a number, at most; a longer one is a name
# The usual statistics of ImageNet, which pretrained networks expect; per channel, of pixels in [0, 1].
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read(name: str, root: Path) -> Dataset:
    """The data set `folder:PATH@SIZE`: each image's shorter side resized to SIZE, and its centre cut out.

    Without @SIZE it is 224. A relative PATH is below the data directory `root`. Normalised by ImageNet's statistics.
    """
    path, size = _parse(name, root)
    if not path.is_dir():
        raise UserError(
            f"data set '{name}' needs the folder {path}, which does not exist; write folder:PATH or folder:PATH@SIZE, "
            "where a relative PATH is below --data or MIXMO_DATA"
        )
    train, test = samples(path, "train"), samples(path, "val", "test")
    classes = class_names(train)
    if len(classes) < 2:
        raise UserError(
            f"the train images in {path} are all of class '{classes[0]}'; there must be at least two classes"
        )
    unknown = {sample.label for sample in test} - set(classes)
    if unknown:
        raise UserError(
            f"the test images in {path} have classes that its train images lack: {_spelt(unknown, classes)}; "
            "add train images of them, or remove them"
        )
    return Dataset(
        name=name,
        train=listed_split(path, f"train-{size}", train, classes, size),
        test=listed_split(path, f"test-{size}", test, classes, size),
        classes=classes,
        mean=MEAN,
        std=STD,
    )


def same(name: str, other: str, root: Path) -> bool:
    """Whether two names of data sets are of the same images: a folder is the same at any size, however it is written.

    >>> same("folder:pets@64", "folder:./pets", Path("data")), same("folder:pets", "folder:cars", Path("data"))
    (True, False)
    """
    if not (name.startswith(PREFIX) and other.startswith(PREFIX)):
        return name == other
    return _parse(name, root)[0].resolve() == _parse(other, root)[0].resolve()


def _parse(name: str, root: Path) -> tuple[Path, int]:
    match = re.fullmatch(rf"{PREFIX}(?P<path>.+?)(@(?P<size>\d+))?", name)
    if match is None:
        raise UserError(f"data set '{name}' names no folder; write folder:PATH or folder:PATH@SIZE")
    size = int((match["size"] or str(SIZE))[:DIGITS])
    if not SMALLEST <= size <= LARGEST:
        raise UserError(
            f"data set '{name}' asks for images of {size} pixels a side; take at least {SMALLEST} and at most {LARGEST}"
        )
    return root / Path(match["path"]).expanduser(), size


def _spelt(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Labels in quotes; one that looks like a known label, but has other characters, by their numbers."""
    alike = {unicodedata.normalize("NFC", label) for label in known}
    labels = sorted(unknown)[:5]
    return ", ".join(ascii(label) if unicodedata.normalize("NFC", label) in alike else f"'{label}'" for label in labels)


def samples(root: Path, *names: str) -> list[Sample]:
    """The samples listed by the first of these that exists: ROOT/NAME/ of class folders, or ROOT/NAME.csv."""
    for name in names:
        if (root / name).is_dir():
            return in_class_folders(root / name)
        if (root / f"{name}.csv").is_file():
            return in_csv(root / f"{name}.csv")
    wanted = " or ".join(f"{root / name}/ or {root / name}.csv" for name in names)
    raise UserError(f"{root} has no images: put class folders into {wanted} with the columns path,label")


def in_class_folders(path: Path) -> list[Sample]:
    """Every image file at any depth below each folder in `path`, the class being the folder's name; sorted."""
    found = []
    for label in sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith(".")):
        files = sorted(image_files(path / label))
        if not files:
            raise UserError(f"{path / label} has no images ({', '.join(EXTENSIONS)}); add some, or remove the folder")
        found += [Sample(file, label) for file in files]
    if not found:
        raise UserError(f"{path} has no class folders; put the images of each class into a folder {path}/CLASS/")
    return found


def image_files(path: Path) -> Iterator[str]:
    """The image files at any depth in a folder, sorted folder by folder; links to other folders are not followed."""

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename} cannot be read ({error.strerror}); allow it, or leave it out") from error

    for where, folders, names in os.walk(path, onerror=refuse):
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(EXTENSIONS) and not name.startswith("."):
                yield os.path.join(where, name)


def in_csv(path: Path) -> list[Sample]:
    """The rows `path,label` of a CSV; a relative path starts at the CSV's folder."""
    found = []
    labels: dict[str, str] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            names = list(rows.fieldnames or ())
            if names.count("path") != 1 or names.count("label") != 1:
                raise UserError(
                    f"{path} should begin with the line 'path,label' and begins with {rows.fieldnames}; correct it"
                )
            for row in rows:
                line, image, label = f"{path}, line {rows.line_num},", row["path"], row["label"]
                if not image or not label:
                    raise UserError(f"{line} lacks a path or a label; complete or remove it")
                if "\0" in image:
                    raise UserError(f"{line} has a zero byte in its path; correct or remove it")
                if labels.setdefault(image, label) != label:
                    raise UserError(f"{line} says '{label}' of {image}, and one before it '{labels[image]}'; keep one")
                found.append(Sample(os.path.join(path.parent, image), label))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a CSV file in UTF-8 ({error}); save it as one") from None
    if not found:
        raise UserError(f"{path} lists no images; add lines of the form 'cats/1.jpg,cat'")
    return found


def class_names(listed: Sequence[Sample]) -> tuple[str, ...]:
    """The labels that occur, sorted; as numbers if all of them are, so that label 10 is class 10.

    >>> class_names([Sample("a", "10"), Sample("b", "9"), Sample("c", "9")])
    ('9', '10')
    """
    labels = {sample.label for sample in listed}
    numbers = all(label.isdecimal() and len(label) <= DIGITS for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbers else 0, label)))


def listed_split(root: Path, name: str, listed: Sequence[Sample], classes: Sequence[str], size: int) -> Split:
    """The samples as a split; `load` decides whether they are decoded into memory (once: then cached) or streamed."""
    index = {label: number for number, label in enumerate(classes)}
    labels = torch.tensor([index[sample.label] for sample in listed], dtype=torch.int64)
    return Split(Files(root, name, listed, labels, size), labels)
