import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from mixmo.data import folder as module
from mixmo.data import load, stream
from mixmo.data.decode import Sample, SkippedImages
from mixmo.data.folder import image_files, in_class_folders, in_csv
from mixmo.data.types import Dataset
from mixmo.utils.errors import UserError

COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


def folder(root: Path, size: int) -> Dataset:
    return load(f"folder:{root}@{size}")


def write(path: Path, label: str, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 12), COLOURS[label]).convert(mode).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for label in COLOURS:
        for index, name in enumerate(("a.png", "b.JPEG", "deep/er/c.jpg")):
            write(tmp_path / "flags" / "train" / label / name, label, "CMYK" if index == 1 else "RGB")
        write(tmp_path / "flags" / "val" / label / "a.webp", label)
    (tmp_path / "flags" / "train" / "red" / "notes.txt").write_text("not an image")
    (tmp_path / "flags" / "train" / ".hidden").mkdir()
    return tmp_path / "flags"


def test_class_folders(root: Path):
    dataset = folder(root, 8)
    assert dataset.name == f"folder:{root}@8"
    assert dataset.classes == ("blue", "green", "red")
    assert dataset.train.images.shape == (9, 8, 8, 3)
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert dataset.test.labels.tolist() == [0, 1, 2]
    for split in (dataset.train, dataset.test):
        colours = torch.tensor([COLOURS[dataset.classes[label]] for label in split.labels])
        assert (split.images[:, 4, 4].int() - colours).abs().max() <= 3
    assert dataset.mean == (0.485, 0.456, 0.406)  # ImageNet's
    assert dataset.std == (0.229, 0.224, 0.225)


def test_the_order_is_not_that_of_the_disk(tmp_path: Path):
    """Folder by folder, so that the first is there at once; of a data set, by the whole path."""
    folders = ["a.png", "b.png", "c.JPG", "d.gif", "a/2.png", "a/3.png", "c/0.png", "c/1.png", "c/b/0.png", "d/0.png"]
    paths = ["a.png", "a/2.png", "a/3.png", "b.png", "c.JPG", "c/0.png", "c/1.png", "c/b/0.png", "d.gif", "d/0.png"]
    for name in (*folders[::-1], ".b.png", "c/notes.txt"):
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / name).touch()
    assert list(image_files(tmp_path / "x")) == [str(tmp_path / "x" / name) for name in folders]
    assert in_class_folders(tmp_path) == [Sample(str(tmp_path / "x" / name), "x") for name in paths]


def test_second_start_reads_the_cache(root: Path, monkeypatch: pytest.MonkeyPatch):
    first = folder(root, 8)
    monkeypatch.setattr(stream, "decode_all", None)  # would raise if called
    second = folder(root, 8)
    assert torch.equal(first.train.images, second.train.images)
    assert torch.equal(first.test.labels, second.test.labels)
    monkeypatch.undo()
    assert folder(root, 10).train.images.shape == (9, 10, 10, 3)
    write(root / "train" / "red" / "new.png", "red")
    assert len(folder(root, 8).train.labels) == 10


def test_test_may_take_the_place_of_val(root: Path):
    (root / "val").rename(root / "test")
    assert len(folder(root, 8).test.labels) == 3


def test_corrupt_images_are_skipped_and_named_at_every_start(root: Path):
    (root / "train" / "green" / "a.png").write_bytes(b"broken")
    for _ in range(2):
        with pytest.warns(SkippedImages, match="1 of the 9 images of train-8.*green/a.png") as caught:
            dataset = folder(root, 8)
        assert len(caught) == 1
        assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
        assert (dataset.train.images[3, 4, 4].int() - torch.tensor(COLOURS["green"])).abs().max() <= 3


def test_csv(root: Path):
    (root / "train").rename(root / "images")
    lines = [f"images/{label}/{name},{label}" for label in COLOURS for name in ("a.png", "b.JPEG", "deep/er/c.jpg")]
    (root / "train.csv").write_text("\n".join(["path,label", *lines]))
    absolute = [f'"{root}/val/{label}/a.webp",{number},{label}' for number, label in enumerate(COLOURS)]
    (root / "test.csv").write_text("\n".join(["\ufeffpath,number,label", *absolute]), encoding="utf-8")
    (root / "val").rename(root / "elsewhere")
    with pytest.raises(UserError, match="none of the 3 images of test-8"):
        folder(root, 8)
    (root / "elsewhere").rename(root / "val")
    assert module.samples(root, "test")[0] == Sample(f"{root}/val/blue/a.webp", "blue")
    dataset = folder(root, 8)
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (dataset.train.images[8, 4, 4].int() - torch.tensor(COLOURS["red"])).abs().max() <= 3


def test_numeric_labels_keep_their_numbers(tmp_path: Path):
    (tmp_path / "a.csv").write_text("path,label\n" + "\n".join(f"{n}.png,{n % 12}" for n in range(24)))
    assert module.class_names(in_csv(tmp_path / "a.csv")) == tuple(str(n) for n in range(12))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "should begin with the line 'path,label' and begins with None"),
        (b"file,class\na.png,cat\n", "should begin with the line 'path,label' and begins with ['file', 'class']"),
        (b"path,label\n", "lists no images; add lines of the form 'cats/1.jpg,cat'"),
        (b"path,label\na.png,cat\nb.png\n", "line 3, lacks a path or a label; complete or remove it"),
        (b"path,label\n,cat\n", "line 2, lacks a path or a label"),
        (b"path,label\na\xff.png,cat\n", "is not a CSV file in UTF-8"),
        (b'path,label\n"' + b"x" * 200_000, "is not a CSV file in UTF-8"),
        (b"path,label,label\na.png,cat,dog\n", "should begin with the line 'path,label'"),
        (b"path,label\na\0.png,cat\n", "line 2, has a zero byte in its path"),
        (b"path,label\na.png,cat\na.png,dog\n", "line 3, says 'dog' of a.png, and one before it 'cat'; keep one"),
    ],
)
def test_bad_csv(tmp_path: Path, content: bytes, problem: str):
    path = tmp_path / "train.csv"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        in_csv(path)
    assert str(path) in str(caught.value)
    assert problem in str(caught.value)


def test_nothing_there(tmp_path: Path):
    with pytest.raises(UserError, match="has no images: put class folders into") as caught:
        folder(tmp_path, 8)
    assert f"{tmp_path}/train/ or {tmp_path}/train.csv" in str(caught.value)


def test_no_test_images(root: Path):
    (root / "val").rename(root / "validation")
    with pytest.raises(UserError, match="has no images") as caught:
        folder(root, 8)
    assert f"{root}/val/ or {root}/val.csv or {root}/test/ or {root}/test.csv" in str(caught.value)


def test_no_class_folders(tmp_path: Path):
    with pytest.raises(UserError, match="has no class folders; put the images of each class into a folder") as caught:
        in_class_folders(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_an_empty_class_folder(root: Path):
    (root / "train" / "white").mkdir()
    with pytest.raises(UserError, match=r"train/white has no images \(.jpg, .*\); add some, or remove the folder"):
        folder(root, 8)


def test_a_class_only_in_the_test_images(root: Path):
    (root / "val" / "red").rename(root / "val" / "pink")
    with pytest.raises(UserError, match="classes that its train images lack: 'pink'; add train images") as caught:
        folder(root, 8)
    assert str(root) in str(caught.value)
    for label in "gfedcba":
        write(root / "val" / label / "a.png", "red")
    with pytest.raises(UserError, match="train images lack: 'a', 'b', 'c', 'd', 'e'; add"):
        folder(root, 8)


def test_labels_that_look_alike_are_told_by_their_characters(root: Path):
    (root / "train" / "red").rename(root / "train" / "caf\N{LATIN SMALL LETTER E WITH ACUTE}")
    (root / "val" / "red").rename(root / "val" / "cafe\N{COMBINING ACUTE ACCENT}")
    with pytest.raises(UserError, match=r"train images lack: 'cafe\\u0301'; add"):
        folder(root, 8)


def test_a_label_of_many_digits_is_a_name(tmp_path: Path):
    (tmp_path / "a.csv").write_text(f"path,label\n1.png,{'1' * 5000}\n2.png,2\n")
    assert module.class_names(in_csv(tmp_path / "a.csv")) == ("1" * 5000, "2")


def test_a_folder_that_cannot_be_read_is_told(root: Path, monkeypatch: pytest.MonkeyPatch):
    """Its images must not just be missing from the set."""
    (root / "train" / "red" / "more").mkdir()
    scandir = os.scandir

    def locked(path: str) -> object:
        if str(path).endswith("more"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    with pytest.raises(UserError, match=r"red/more cannot be read \(Permission denied\); allow it, or leave it out"):
        folder(root, 8)


def test_names(root: Path, monkeypatch: pytest.MonkeyPatch):
    """A relative path is below the data directory, and 224 is the size where none is said."""
    below = load("folder:flags@8", root.parent)
    assert below.name == "folder:flags@8"
    assert torch.equal(below.train.images, folder(root, 8).train.images)
    assert load(f"folder:{root}").test.images.shape == (3, 224, 224, 3)
    monkeypatch.setenv("HOME", str(root.parent))
    assert len(load("folder:~/flags@8").train.labels) == 9
    root.rename(root.with_name("a@b"))
    assert len(load("folder:a@b@8", root.parent).train.labels) == 9


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("folder:", "names no folder; write folder:PATH or folder:PATH@SIZE"),
        ("folder:flags@7", "asks for images of 7 pixels a side; take at least 8 and at most 4096"),
        ("folder:flags@100000", "asks for images of 100000 pixels a side; take at least 8 and at most 4096"),
        (f"folder:flags@{'9' * 5000}", "asks for images of 9"),
        ("folder:flag@8", "needs the folder {}/flag, which does not exist; write folder:PATH or folder:PATH@SIZE"),
        ("folder:flags@64x64", "needs the folder {}/flags@64x64, which does not exist; write folder:PATH or"),
    ],
)
def test_bad_names(root: Path, name: str, problem: str):
    with pytest.raises(UserError) as caught:
        load(name, root.parent)
    assert f"data set '{name}' {problem.format(root.parent)}" in str(caught.value)


def test_one_class(root: Path):
    for label in ("blue", "green"):
        for part in ("train", "val"):
            (root / part / label).rename(root / f"{part}-{label}")
    with pytest.raises(UserError, match="are all of class 'red'; there must be at least two classes"):
        folder(root, 8)
