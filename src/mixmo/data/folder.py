"""Your own images by the name `folder:PATH@SIZE`: class folders (as ImageNet's), or a CSV of image paths and labels.

PATH/train/CLASS/....jpg    PATH/val/CLASS/....jpg  (or test/)
PATH/train.csv              PATH/val.csv            (or test.csv), with the columns path,label
PATH/CLASS/....jpg          without train/ and val/: `val` is the share of each class held out as the test set
"""

import csv
import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from mixmo.data.decode import Sample
from mixmo.data.stream import Files
from mixmo.data.types import Dataset, Split
from mixmo.utils.errors import UserError, quoted

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
PREFIX = "folder:"
SIZE, SMALLEST, LARGEST = 224, 8, 4096  # pixels per side: without an @, at least, and at most
PARTS = {"train": ("train",), "test": ("val", "test")}
# The usual statistics of ImageNet, which pretrained networks expect; per channel, of pixels in [0, 1].
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read(name: str, root: Path, val: float = 0.0) -> Dataset:
    """Read the data set `folder:PATH@SIZE`: each image's shorter side is resized to SIZE and its centre cropped.

    With `val`, the data set's name ends in `?val=SHARE`, by which a saved network finds its test images again.
    """
    path, size, share = parse(name, root)
    val, kind = val or share, ""
    parts = list_parts(path)
    if val:
        if "test" in parts:
            raise UserError(f"{path} has a test set (val/ or test/) already; leave out val = {val:g}")
        train, test = split_by_class(parts.get("train") or parts["images"], path, val)
        name, kind = f"{name.partition('?val=')[0]}?val={val}", f"+val{val}"  # not "-": see data/cache.py
    elif len(parts) < len(PARTS):
        raise UserError(no_split(path, parts))
    else:
        train, test = parts["train"], parts["test"]
    classes = class_names(train)
    if len(classes) < 2:
        raise UserError(one_class(path, classes[0]))
    if unknown := sorted({sample.label for sample in test} - set(classes)):
        raise UserError(f"classes without training images in {path}: {ascii(unknown[:5])[1:-1]}; add images")
    return Dataset(
        name=name,
        train=listed_split(path, f"train-{size}{kind}", train, classes, size),
        test=listed_split(path, f"test-{size}{kind}", test, classes, size),
        classes=classes,
        mean=MEAN,
        std=STD,
    )


def parse(name: str, root: Path) -> tuple[Path, int, float]:
    """Return the folder, which must exist, the size of the images and the share of the test set.

    A relative path is below the working directory, or else below the data directory `root`.
    """
    match = re.fullmatch(rf"{PREFIX}(?P<path>.+?)(@(?P<size>\d{{1,9}}))?(\?val=(?P<val>0?\.\d+))?", name)
    form = f"data set '{name}': write folder:PATH or folder:PATH@SIZE, of {SMALLEST} to {LARGEST} pixels"
    if match is None or not SMALLEST <= (size := int(match["size"] or SIZE)) <= LARGEST:
        raise UserError(form)
    path = locate(match["path"], root)
    if not path.is_dir():
        if locate(match["path"].rpartition("@")[0] or match["path"], root).is_dir():
            raise UserError(form)
        raise UserError(f"data set '{name}': no such folder in {Path.cwd()} or in the data directory {root}")
    return path, size, float(match["val"] or 0)


def locate(path: str, root: Path) -> Path:
    """Return the absolute path, below the working directory; if there is no such folder, below the data directory."""
    here, below = Path(path).expanduser().absolute(), (root / path).absolute()
    return below if not here.is_dir() and below.is_dir() else here


def same(name: str, other: str, root: Path) -> bool:
    """Return whether two names of data sets mean the same images: a folder is the same at any size.

    >>> same("folder:pets@64", "folder:./pets", Path("data")), same("folder:pets", "folder:cars", Path("data"))
    (True, False)
    """

    def images(name: str) -> str | Path:
        path = re.sub(r"(@\d+)?(\?val=[\d.]+)?$", "", name.removeprefix(PREFIX))
        return locate(path, root).resolve() if name.startswith(PREFIX) else name

    return images(name) == images(other)


def list_parts(path: Path) -> dict[str, list[Sample]]:
    """List the images of the parts "train" and "test" that exist; "images" if there are class folders only."""
    found = {}
    for part, names in PARTS.items():
        for name in names:
            if (path / name).is_dir():
                found[part] = in_class_folders(path / name)
            elif (path / f"{name}.csv").is_file():
                found[part] = in_csv(path / f"{name}.csv")
            if part in found:
                break
    return found or {"images": in_class_folders(path)}


def no_split(path: Path, parts: dict[str, list[Sample]]) -> str:
    """Return the error of a folder that has not both training and test images."""
    if "test" in parts:
        return f"{path} has test images and no training images; put class folders into {path}/train/"
    lacking = "no test set" if "train" in parts else "no train/ and val/"
    return (
        f"{path} has {lacking}; train with --val 0.2 to hold out 20 % of each class as the test set, or put class "
        f"folders into {' and '.join(f'{path}/{part}/' for part in ('train', 'val') if part not in parts)}"
    )


def one_class(path: Path, label: str) -> str:
    """Return the error of a folder whose images have one class."""
    return f"the training images in {path} are all of class '{label}'; there must be two or more"


def untested(label: str) -> str:
    """Return what is to be known of a class that has no test image."""
    return f"class {label} has no test image; scores do not cover it"


def split_by_class(samples: Sequence[Sample], path: Path, val: float) -> tuple[list[Sample], list[Sample]]:
    """Hold out the share `val` of each class, rounded: the files that come first by a hash of their path below `path`.

    So the split depends on the names of the files alone: not on the seed, the machine or the order on the disk. A class
    of several images has at least one in each part; a class of one image has it in the training set.
    """

    def order(sample: Sample) -> bytes:
        return hashlib.sha256(os.fsencode(os.path.relpath(sample.path, path))).digest()

    by_class: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_class[sample.label].append(sample)
    held: set[Sample] = set()
    for members in by_class.values():
        count = min(max(1, round(val * len(members))), len(members) - 1)
        held.update(sorted(members, key=order)[:count])
    return [sample for sample in samples if sample not in held], [sample for sample in samples if sample in held]


def in_class_folders(path: Path) -> list[Sample]:
    """List every image file at any depth below each folder in `path`, sorted; its class is the folder's name."""
    labels = sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith("."))
    if not labels:
        raise UserError(f"{path} has no class folders; put the images of each class into a folder {path}/CLASS/")
    found = []
    for label in labels:
        files = sorted(image_files(path / label))
        if not files:
            raise UserError(f"{path / label} has no images ({', '.join(EXTENSIONS)}); add some, or remove the folder")
        found += [Sample(file, label) for file in files]
    return found


def image_files(path: Path) -> Iterator[str]:
    """List the image files at any depth in a folder, sorted folder by folder; links to folders are not followed."""

    def fail(error: OSError) -> None:
        raise UserError(f"{error.filename} cannot be read ({error.strerror}); allow it, or leave it out") from error

    for where, folders, names in os.walk(path, onerror=fail):
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(EXTENSIONS) and not name.startswith("."):
                yield os.path.join(where, name)


def in_csv(path: Path) -> list[Sample]:
    """List the rows `path,label` of a CSV; a relative path starts at the CSV's folder."""
    labels: dict[str, str] = {}
    found = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if not {"path", "label"} <= {*(columns := rows.fieldnames or ())}:
                found_columns = quoted(",".join(columns))
                raise UserError(f"{path}: its first line is {found_columns}; name the columns path,label there")
            for row in rows:
                image, label = row.get("path"), row.get("label")
                if not image or not label or labels.setdefault(image, label) != label:
                    raise UserError(f"{path}, line {rows.line_num}: give a path and one label, under 'path,label'")
                found.append(Sample(os.path.join(path.parent, image), label))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a CSV file in UTF-8 ({error}); save it as one") from None
    if not found:
        raise UserError(f"{path} lists no images; write 'path,label' and then lines such as 'cats/1.jpg,cat'")
    return found


def class_names(samples: Sequence[Sample]) -> tuple[str, ...]:
    """Return the labels that occur, sorted; as numbers if all of them are, so that label 10 is class 10.

    >>> class_names([Sample("a", "10"), Sample("b", "9"), Sample("c", "9")])
    ('9', '10')
    """
    labels = {sample.label for sample in samples}
    numbers = all(label.isdecimal() and len(label) < 19 for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbers else 0, label)))


def listed_split(root: Path, name: str, samples: Sequence[Sample], classes: Sequence[str], size: int) -> Split:
    """Make a split of samples that `mixmo.data.place` will decode into memory or stream."""
    index = {label: number for number, label in enumerate(classes)}
    labels = torch.tensor([index[sample.label] for sample in samples], dtype=torch.int64)
    return Split(Files(root, name, samples, labels, size), labels)
