import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mixmo.data import cifar, corrupted
from mixmo.data.check import CIFARS, check, md5
from mixmo.data.tiny_imagenet import FOLDER
from mixmo.errors import UserError


def test_unknown():
    with pytest.raises(UserError, match="unknown data set 'cifar10c'; did you mean 'cifar10-c'"):
        check("cifar10c", Path("data"))


def test_digits_are_always_right(tmp_path: Path):
    assert check("digits", tmp_path) == []


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "tiny-imagenet", "cifar10-c", "cifar100-c"])
def test_nothing_there(tmp_path: Path, name: str):
    (fault,) = check(name, tmp_path)
    assert str(tmp_path) in fault
    assert f"`mixmo data get {name} --to {tmp_path}`" in fault


def test_md5(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"abc")
    assert md5(tmp_path / "a") == "900150983cd24fb0d6963f7d28e17f72"


def test_real_cifar100(cifar100_root: Path, tmp_path: Path):
    """The original has no fault; one flipped pixel has one, which names the file, and is still readable."""
    assert check("cifar100", cifar100_root) == []
    folder = tmp_path / "cifar-100-python"
    shutil.copytree(cifar100_root / "cifar-100-python", folder)
    with (folder / "test").open("r+b") as file:
        file.seek(-5000, os.SEEK_END)
        pixel = file.read(1)[0]
        file.seek(-5000, os.SEEK_END)
        file.write(bytes([pixel ^ 1]))
    (fault,) = check("cifar100", tmp_path)
    assert fault.startswith(f"{folder / 'test'} is not the original file (its md5 is ")
    assert f"should be {cifar.CIFAR100.test['test']}" in fault
    assert fault.endswith(f"delete {folder}, and `mixmo data get cifar100 --to {tmp_path}` fetches it")


def test_cifar_with_damaged_files(tmp_path: Path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"\x80\x02}")
    faults = check("cifar10", tmp_path)
    assert len(faults) == 2
    assert "data_batch_1 is not the original file" in faults[0]
    assert "data_batch_1 is truncated or damaged" in faults[1]


def test_the_checksums_cover_every_file(tmp_path: Path):
    for layout in CIFARS.values():
        files = dict(cifar.checksums(tmp_path, layout))
        assert len(files) == len(layout.train) + len(layout.test) + 1
        assert all(len(digest) == 32 and int(digest, 16) for digest in files.values())


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
    assert check("tiny-imagenet", tmp_path) == []
    (folder / "train/n01/images/7.JPEG").write_bytes(b"")
    (fault,) = check("tiny-imagenet", tmp_path)
    assert "1 of the 500 images of train" in fault
    assert str(folder / "train/n01/images/7.JPEG") in fault
    (folder / "train/n01/images/7.JPEG").unlink()
    (fault,) = check("tiny-imagenet", tmp_path)
    assert "has 499 images of class n01 instead of 500" in fault


def test_corrupted_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corrupted, "TEST_IMAGES", 2)
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile([0, 1], 5))
    for name in corrupted.COMMON + corrupted.EXTRA:
        np.save(folder / f"{name}.npy", np.zeros((10, 32, 32, 3), np.uint8))
    assert check("cifar10-c", tmp_path) == []
    (folder / "fog.npy").rename(folder / "mist.npy")
    monkeypatch.setattr(corrupted, "TEST_IMAGES", 3)
    missing, foreign, size = check("cifar10-c", tmp_path)
    remedy = f"delete {folder}, and `mixmo data get cifar10-c --to {tmp_path}` fetches it"
    assert missing == f"{folder}/fog.npy is missing; {remedy}"
    assert foreign == f"{folder}/mist.npy is not one of the 19 corruptions; remove it"
    assert size == f"{folder} has 2 images a severity instead of 3; {remedy}"
    (folder / "snow.npy").write_bytes(b"")
    assert "snow.npy is truncated" in check("cifar10-c", tmp_path)[-1]
