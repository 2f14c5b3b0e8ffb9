import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image

from mixmo.data import folder as module
from mixmo.data import load, stream
from mixmo.data.decode import Sample, SkippedImages
from mixmo.data.folder import image_files, in_class_folders, in_csv, split_by_class
from mixmo.data.stream import Files
from mixmo.data.types import Dataset, Split
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


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """Class folders of 10, 5 and 2 images, without train/ and val/; the red value is the number of the image."""
    for label, count in (("blue", 10), ("green", 5), ("red", 2)):
        for number in range(count):
            path = tmp_path / "flat" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (number, 0, 0)).save(path)
    return tmp_path / "flat"


def test_class_folders_are_read(root: Path):
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


def test_files_are_listed_in_sorted_order(tmp_path: Path):
    """Folder by folder, so that the first is there at once; of a data set, by the whole path."""
    folders = ["a.png", "b.png", "c.JPG", "d.gif", "a/2.png", "a/3.png", "c/0.png", "c/1.png", "c/b/0.png", "d/0.png"]
    paths = ["a.png", "a/2.png", "a/3.png", "b.png", "c.JPG", "c/0.png", "c/1.png", "c/b/0.png", "d.gif", "d/0.png"]
    for name in (*folders[::-1], ".b.png", "c/notes.txt"):
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / name).touch()
    assert list(image_files(tmp_path / "x")) == [str(tmp_path / "x" / name) for name in folders]
    assert in_class_folders(tmp_path) == [Sample(str(tmp_path / "x" / name), "x") for name in paths]


def numbers(split: Split) -> list[tuple[int, int]]:
    """Label and number of every image of `flat`."""
    images = torch.cat([batch.resident for batch in split.batches(3)])
    return list(zip(split.labels.tolist(), images[:, 4, 4, 0].tolist(), strict=True))


def test_val_holds_out_a_share_of_each_class(flat: Path):
    dataset = load(f"folder:{flat}@8", val=0.2)
    train, test = numbers(dataset.train), numbers(dataset.test)
    assert Counter(label for label, _ in test) == {0: 2, 1: 1, 2: 1}  # a class of two images has one in each part
    assert sorted(train + test) == [(label, n) for label, count in enumerate((10, 5, 2)) for n in range(count)]
    assert test != sorted(test, key=lambda sample: sample[1])[: len(test)]  # not the first files
    assert dataset.name == f"folder:{flat}@8?val=0.2"


@pytest.mark.parametrize("stream", [False, True])
def test_the_held_out_images_are_the_same_at_every_load(flat: Path, stream: bool):
    name = f"folder:{flat}@8"
    first = load(name, val=0.4)
    again = load(name, stream=stream, workers=0, val=0.4)
    assert isinstance(again.test.images, Files) == stream
    assert numbers(again.train) == numbers(first.train)
    assert numbers(again.test) == numbers(first.test)
    assert numbers(load(name, val=0.4, train=False).test) == numbers(first.test)
    assert numbers(load(first.name).test) == numbers(first.test)  # the name of a saved network's data set is enough
    flat.rename(flat.with_name("moved"))
    assert numbers(load(f"folder:{flat.with_name('moved')}@16", val=0.4).test) == numbers(first.test)


def test_two_shares_do_not_remove_the_cache_of_each_other(flat: Path):
    for val in (0.2, 0.4):
        load(f"folder:{flat}@8", val=val)
    assert len(list((flat / ".mixmo-cache").iterdir())) == 4


def test_val_may_split_a_train_folder(root: Path):
    (root / "val").rename(root / "elsewhere")
    dataset = load(f"folder:{root}@8", val=0.3)
    assert dataset.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.test.labels.tolist() == [0, 1, 2]


def test_val_is_rejected_where_there_is_a_test_set(root: Path):
    with pytest.raises(UserError, match="val"):
        load(f"folder:{root}@8", val=0.3)


def test_a_folder_without_a_split_recommends_val(flat: Path, root: Path):
    with pytest.raises(UserError, match=r"--val 0\.2"):
        folder(flat, 8)
    (root / "val").rename(root / "validation")
    with pytest.raises(UserError, match=r"--val 0\.2"):
        folder(root, 8)
    (root / "validation").rename(root / "test")
    (root / "train").rename(root / "training")
    with pytest.raises(UserError, match="no training images"):
        folder(root, 8)


def test_a_class_of_one_image_is_in_the_training_set():
    samples = [Sample("/x/a/1.png", "a"), Sample("/x/b/1.png", "b"), Sample("/x/b/2.png", "b")]
    train, test = split_by_class(samples, Path("/x"), 0.9)
    assert [sample.label for sample in train] == ["a", "b"]
    assert [sample.label for sample in test] == ["b"]


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


def test_unreadable_images_are_skipped_and_named_at_every_start(root: Path):
    (root / "train" / "green" / "a.png").write_bytes(b"broken")
    for _ in range(2):
        with pytest.warns(SkippedImages, match="1 of the 9 images of train-8.*green/a.png") as caught:
            dataset = folder(root, 8)
        assert len(caught) == 1
        assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
        assert (dataset.train.images[3, 4, 4].int() - torch.tensor(COLOURS["green"])).abs().max() <= 3


@pytest.mark.filterwarnings("ignore::mixmo.data.decode.SkippedImages")
def test_a_class_without_a_readable_training_image_is_named(root: Path):
    for path in image_files(root / "train" / "green"):
        Path(path).write_bytes(b"broken")
    with pytest.raises(UserError, match="green"):
        folder(root, 8)
    assert len(load(f"folder:{root}@8", train=False).test.labels) == 3


def test_csv_files_are_read(root: Path):
    (root / "train").rename(root / "images")
    lines = [f"images/{label}/{name},{label}" for label in COLOURS for name in ("a.png", "b.JPEG", "deep/er/c.jpg")]
    (root / "train.csv").write_text("\n".join(["path,label", *lines]))
    absolute = [f'"{root}/val/{label}/a.webp",{number},{label}' for number, label in enumerate(COLOURS)]
    (root / "test.csv").write_text("\n".join(["\ufeffpath,number,label", *absolute]), encoding="utf-8")
    (root / "val").rename(root / "elsewhere")
    with pytest.raises(UserError, match="none of the 3 images of test-8"):
        folder(root, 8)
    (root / "elsewhere").rename(root / "images" / "val")
    (root / "test.csv").write_text((root / "test.csv").read_text(encoding="utf-8-sig").replace("/val/", "/images/val/"))
    assert module.list_parts(root)["test"][0] == Sample(f"{root}/images/val/blue/a.webp", "blue")
    dataset = folder(root, 8)
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (dataset.train.images[8, 4, 4].int() - torch.tensor(COLOURS["red"])).abs().max() <= 3


def test_numeric_labels_keep_their_numbers(tmp_path: Path):
    (tmp_path / "a.csv").write_text("path,label\n" + "\n".join(f"{n}.png,{n % 12}" for n in range(24)))
    assert module.class_names(in_csv(tmp_path / "a.csv")) == tuple(str(n) for n in range(12))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "path,label"),
        (b"file,class\na.png,cat\n", "its first line is 'file,class'; name the columns path,label there"),
        (b"path,label\n", "no images"),
        (b"path,label\na.png,cat\nb.png\n", "line 3"),
        (b"path,label\n,cat\n", "line 2"),
        (b"path,label\na\xff.png,cat\n", "UTF-8"),
        (b"path,label\na.png,cat\na.png,dog\n", "line 3"),
    ],
)
def test_a_wrong_csv_names_its_fault(tmp_path: Path, content: bytes, word: str):
    path = tmp_path / "train.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=word) as caught:
        in_csv(path)
    assert str(path) in str(caught.value)


def test_a_folder_without_class_folders_is_an_error(tmp_path: Path):
    with pytest.raises(UserError, match="class folders"):
        folder(tmp_path, 8)


def test_an_empty_class_folder_is_named(root: Path):
    (root / "train" / "white").mkdir()
    with pytest.raises(UserError, match="train/white"):
        folder(root, 8)


def test_a_class_without_a_training_image_is_named(root: Path):
    (root / "val" / "red").rename(root / "val" / "pink")
    with pytest.raises(UserError, match=r"without training images in .*: 'pink'"):
        folder(root, 8)


def test_labels_that_look_alike_are_shown_by_their_characters(root: Path):
    (root / "train" / "red").rename(root / "train" / "caf\N{LATIN SMALL LETTER E WITH ACUTE}")
    (root / "val" / "red").rename(root / "val" / "cafe\N{COMBINING ACUTE ACCENT}")
    with pytest.raises(UserError, match=r"'cafe\\u0301'"):
        folder(root, 8)


def test_a_folder_that_cannot_be_read_is_named(root: Path, monkeypatch: pytest.MonkeyPatch):
    (root / "train" / "red" / "more").mkdir()
    scandir = os.scandir

    def locked(path: str) -> object:
        if str(path).endswith("more"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    with pytest.raises(UserError, match="red/more"):
        folder(root, 8)


def labels(name: str, root: Path) -> Sequence[int]:
    return load(name, root).test.labels.tolist()


def test_a_relative_path_is_below_the_working_directory(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Or, where there is none, below the data directory, where earlier versions looked for it."""
    assert labels("folder:flags@8", root.parent) == [0, 1, 2]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for label in ("blue", "red"):
        for part in ("train", "val"):
            write(tmp_path / "here" / "flags" / part / label / "a.png", label)
    assert labels("folder:flags@8", root.parent) == [0, 1]
    with pytest.raises(UserError, match="no such folder") as caught:
        load("folder:flag@8", root.parent)
    assert str(tmp_path / "here") in str(caught.value)
    assert str(root.parent) in str(caught.value)


def test_names_of_folders(root: Path, monkeypatch: pytest.MonkeyPatch):
    assert load("folder:flags@8", root.parent).name == "folder:flags@8"
    assert load(f"folder:{root}").test.images.shape == (3, 224, 224, 3)  # the default
    monkeypatch.setenv("HOME", str(root.parent))
    assert len(load("folder:~/flags@8").train.labels) == 9
    root.rename(root.with_name("a@b"))
    assert len(load("folder:a@b@8", root.parent).train.labels) == 9


@pytest.mark.parametrize("name", ["folder:", "folder:flags@7", "folder:flags@100000", "folder:flags@64x64"])
def test_a_wrong_name_is_an_error(root: Path, name: str):
    with pytest.raises(UserError, match=name):
        load(name, root.parent)


def test_a_single_class_is_an_error(root: Path):
    for label in ("blue", "green"):
        for part in ("train", "val"):
            (root / part / label).rename(root / f"{part}-{label}")
    with pytest.raises(UserError, match="class 'red'"):
        folder(root, 8)


def test_a_size_that_is_no_number_is_no_missing_folder(root: Path) -> None:
    with pytest.raises(UserError, match="write folder:PATH or folder:PATH@SIZE, of 8 to 4096 pixels"):
        module.parse(f"folder:{root}@abc", root)
    with pytest.raises(UserError, match="no such folder"):
        module.parse(f"folder:{root}s@abc", root)
