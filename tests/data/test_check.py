import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mixmo.data import cifar, corrupted
from mixmo.data.check import Findings, check
from mixmo.data.tiny_imagenet import FOLDER
from mixmo.storage.checksums import md5
from mixmo.utils.errors import UserError


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean 'cifar10-c'"):
        check("cifar10c", Path("data"))


def test_digits_need_no_files(tmp_path: Path):
    assert check("digits", tmp_path) == Findings("digits: 1,437 train and 360 test images of 8x8x1, 10 classes", [])


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "tiny-imagenet", "cifar10-c", "cifar100-c"])
def test_missing_files_name_the_command_that_gets_them(tmp_path: Path, name: str):
    summary, (fault,) = check(name, tmp_path)
    assert summary == ""
    assert str(tmp_path) in fault
    assert f"`mixmo data get {name} --to {tmp_path}`" in fault


def test_md5_of_a_file(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"abc")
    assert md5(tmp_path / "a") == "900150983cd24fb0d6963f7d28e17f72"


def test_a_flipped_pixel_of_cifar100_is_found(cifar100_root: Path, tmp_path: Path):
    """The original has no fault; one flipped pixel changes the checksums of the file and of the pixels."""
    assert check("cifar100", cifar100_root) == Findings(
        "cifar100: 50,000 train and 10,000 test images of 32x32x3, 100 classes, every file as published", []
    )
    folder = tmp_path / "cifar-100-python"
    shutil.copytree(cifar100_root / "cifar-100-python", folder)
    with (folder / "test").open("r+b") as file:
        file.seek(-5000, os.SEEK_END)
        pixel = file.read(1)[0]
        file.seek(-5000, os.SEEK_END)
        file.write(bytes([pixel ^ 1]))
    summary, (file, contents) = check("cifar100", tmp_path)
    assert summary == ""
    assert str(folder / "test") in file
    assert cifar.CIFAR100.test["test"] in file
    assert "checksum" in contents


def test_damaged_cifar_files_are_named(tmp_path: Path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"\x80\x02}")
    faults = check("cifar10", tmp_path).faults
    assert len(faults) == 2
    assert "data_batch_1 is not the original file" in faults[0]
    assert "data_batch_1 is missing, truncated" in faults[1]


def test_tiny_imagenet_names_unreadable_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / FOLDER
    (folder / "train/n01/images").mkdir(parents=True)
    (folder / "val/images").mkdir(parents=True)
    for number in range(500):
        Image.new("RGB", (64, 64)).save(folder / f"train/n01/images/{number}.JPEG")
    for number in range(50):
        Image.new("RGB", (64, 64)).save(folder / f"val/images/{number}.JPEG")
    (folder / "val/val_annotations.txt").write_text("".join(f"{number}.JPEG\tn01\n" for number in range(50)))
    (folder / "wnids.txt").write_text("n01\n")
    (folder / "words.txt").write_text("n01\tgoldfish\n")
    assert check("tiny-imagenet", tmp_path).faults == []
    (folder / "train/n01/images/7.JPEG").write_bytes(b"")
    (fault,) = check("tiny-imagenet", tmp_path).faults
    assert "1 of the 500 images of train" in fault
    assert str(folder / "train/n01/images/7.JPEG") in fault
    (folder / "train/n01/images/7.JPEG").unlink()
    (fault,) = check("tiny-imagenet", tmp_path).faults
    assert "has 499 images of class n01 instead of 500" in fault


@pytest.mark.parametrize(
    ("name", "folder", "command"),
    [
        ("cifar10-c", "CIFAR-10-C", "`mixmo data get cifar10-c --to {0}`"),
        ("cifar10-c-style", "cifar10-c-style", "`mixmo data corrupt cifar10 --data {0} --to {0}`"),
    ],
)
def test_missing_and_unknown_corruptions_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str, command: str
):
    assert command.format(tmp_path) in check(name, tmp_path).faults[0]
    monkeypatch.setattr(corrupted, "TEST_IMAGES", 2)
    folder = tmp_path / folder
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile([0, 1], 5))
    for corruption in corrupted.COMMON + corrupted.EXTRA:
        np.save(folder / f"{corruption}.npy", np.zeros((10, 32, 32, 3), np.uint8))
    assert check(name, tmp_path) == Findings(f"{name}: 19 corruptions at severities 1, 2, 3, 4, 5, 2 images each", [])
    (folder / "fog.npy").rename(folder / "mist.npy")
    monkeypatch.setattr(corrupted, "TEST_IMAGES", 3)
    missing, other, size = check(name, tmp_path).faults
    assert f"{folder}/fog.npy is missing" in missing
    assert f"{folder}/mist.npy" in other
    assert "2 images per severity instead of 3" in size
    (folder / "snow.npy").write_bytes(b"")
    assert "snow.npy" in check(name, tmp_path).faults[-1]


def images(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", (9, 9)).save(folder / f"{number}.png")


def test_a_folder_counts_images_per_class(tmp_path: Path):
    for part, cats, dogs in (("train", 3, 12), ("val", 1, 2)):
        images(tmp_path / "pets" / part / "cat", cats)
        images(tmp_path / "pets" / part / "dog", dogs)
    summary, faults = check("folder:pets@8", tmp_path)
    assert faults == []
    assert summary.splitlines() == [
        f"{tmp_path}/pets: 15 train and 3 test images, 2 classes",
        "class    train     test",
        "cat          3        1",
        "dog         12        2",
        "smallest class: cat (3), largest class: dog (12); `mixmo train --balance loss` weights the classes equally",
    ]
    broken = tmp_path / "pets/train/cat/2.png"
    broken.write_bytes(b"")
    images(tmp_path / "pets/val/bird", 1)
    unreadable, untrained = check("folder:pets@8", tmp_path).faults
    assert str(broken) in unreadable
    assert "class bird has no training image" in untrained


def test_a_class_without_test_images_and_a_single_class_are_said(tmp_path: Path):
    for label in ("cat", "dog"):
        images(tmp_path / "pets" / "train" / label, 2)
    images(tmp_path / "pets" / "val" / "cat", 1)
    summary, faults = check("folder:pets@8", tmp_path)
    assert faults == []
    assert summary.splitlines()[-1] == "class dog has no test image; scores do not cover it"
    images(tmp_path / "one" / "cat", 3)
    assert "all of class 'cat'; there must be two or more" in check("folder:one@8", tmp_path).faults[0]


def test_a_folder_without_a_split_suggests_val(tmp_path: Path):
    images(tmp_path / "pets" / "cat", 3)
    images(tmp_path / "pets" / "dog", 4)
    summary, faults = check("folder:pets@8", tmp_path)
    assert faults == []
    assert "cat          3" in summary
    assert "--val 0.2" in summary.splitlines()[-1]
    assert check("folder:pats@8", tmp_path).summary == ""
