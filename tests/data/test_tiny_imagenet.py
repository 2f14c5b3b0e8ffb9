import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mixmo.data import load, place, tiny_imagenet
from mixmo.data.decode import SkippedImages
from mixmo.utils.errors import UserError

WNIDS = ["n02", "n01", "n10"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two train images and one test image in each of three classes, as Stanford packs them; one is grey."""
    folder = tmp_path / "tiny-imagenet-200"
    for wnid in WNIDS:
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
        for index in range(2):
            mode = "L" if (wnid, index) == ("n01", 1) else "RGB"
            colour = (int(wnid[1:]) * 20,) * 3
            Image.new("RGB", (64, 64), colour).convert(mode).save(images / f"{wnid}_{index}.JPEG")
    (folder / "val" / "images").mkdir(parents=True)
    for index, wnid in enumerate(WNIDS):
        Image.new("RGB", (64, 64), (int(wnid[1:]) * 20,) * 3).save(folder / "val" / "images" / f"val_{index}.JPEG")
    lines = [f"val_{index}.JPEG\t{wnid}\t0\t32\t44\t62" for index, wnid in enumerate(WNIDS)]
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (folder / "wnids.txt").write_text("\n".join(WNIDS))
    (folder / "words.txt").write_text("n00\tentity\nn01\tgoldfish, Carassius\nn02\tbullfrog\n\nn10\tox, cattle\n")
    return tmp_path


def test_images_labels_and_class_names_are_read(root: Path):
    dataset = place(tiny_imagenet.read(root, 2, 1))
    assert dataset.classes == ("goldfish", "bullfrog", "ox")
    assert dataset.train.images.shape == (6, 64, 64, 3)
    assert dataset.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.test.labels.tolist() == [1, 0, 2]  # in the order of val_annotations.txt
    assert dataset.train.images[:, 5, 5, 2].tolist() == [20, 20, 40, 40, 200, 200]
    assert dataset.test.images[:, 5, 5, 0].tolist() == [40, 20, 200]
    assert dataset.mean == dataset.std == (0.5, 0.5, 0.5)


def test_train_false_does_not_need_the_training_images(root: Path, monkeypatch: pytest.MonkeyPatch):
    whole = place(tiny_imagenet.read(root, 2, 1))
    shutil.rmtree(root / "tiny-imagenet-200" / "train")
    monkeypatch.setattr(tiny_imagenet.read, "__defaults__", (2, 1))
    dataset = load("tiny-imagenet", root, train=False)
    assert dataset.test.images.tolist() == whole.test.images.tolist()
    assert dataset.test.labels.tolist() == whole.test.labels.tolist()
    assert dataset.classes == whole.classes
    with pytest.raises(UserError, match="train"):
        load("tiny-imagenet", root)


def test_a_corrupt_image_is_skipped(root: Path):
    (root / "tiny-imagenet-200/val/images/val_1.JPEG").write_bytes(b"")
    with pytest.warns(SkippedImages, match="1 of the 3 images of val .*val_1.JPEG"):
        assert place(tiny_imagenet.read(root, 2, 1)).test.labels.tolist() == [1, 2]


def spoil(root: Path, name: str, content: str | None) -> None:
    path = root / "tiny-imagenet-200" / name
    path.unlink() if content is None else path.write_text(content)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("wnids.txt", None, "wnids.txt, which does not exist"),
        ("words.txt", None, "words.txt, which does not exist"),
        ("val/val_annotations.txt", None, "val_annotations.txt, which does not exist"),
        ("val/val_annotations.txt", "val_0.JPEG\tn02\nval_1.JPEG\n", "val_annotations.txt has 0 images of class n01"),
        ("val/val_annotations.txt", "val_0.JPEG\tn02\n", "val_annotations.txt has 0 images of class n01 instead of 1"),
        ("train/n10/images/n10_1.JPEG", None, "train has 1 images of class n10 instead of 2"),
        ("wnids.txt", "n01\nn02\n", "train has 2 images of class n10 instead of 0"),
        ("wnids.txt", "n01\nn02\nn03\nn10\n", "train has 0 images of class n03 instead of 2"),
    ],
)
def test_missing_files_and_wrong_counts_are_named(root: Path, name: str, content: str | None, problem: str):
    spoil(root, name, content)
    with pytest.raises(UserError) as caught:
        tiny_imagenet.read(root, 2, 1)
    folder = root / "tiny-imagenet-200"
    assert problem in str(caught.value)
    assert str(folder / name.split("/")[0]) in str(caught.value) or name == "wnids.txt"
    assert f"`mixmo data get tiny-imagenet --to {root}`" in str(caught.value)


def test_a_missing_train_folder_is_named(root: Path):
    (root / "tiny-imagenet-200/train").rename(root / "tiny-imagenet-200/elsewhere")
    with pytest.raises(UserError, match="tiny-imagenet-200/train"):
        tiny_imagenet.read(root, 2, 1)


@pytest.mark.slow
def test_real_tiny_imagenet(real_root: Path):
    if not (real_root / tiny_imagenet.FOLDER).is_dir():
        pytest.skip(f"no Tiny ImageNet in {real_root}")
    load("tiny-imagenet", real_root)  # decoded now, unless it was before
    start = time.perf_counter()
    dataset = load("tiny-imagenet", real_root)
    assert time.perf_counter() - start < 5
    assert dataset.train.images.shape == (100_000, 64, 64, 3)
    assert dataset.train.labels.bincount().tolist() == [500] * 200
    assert dataset.test.labels.bincount().tolist() == [50] * 200
    assert len(set(dataset.classes)) == 200
    values = np.arange(256) / 255
    for channel, (mean, std) in enumerate(zip((0.4802, 0.4481, 0.3975), (0.2764, 0.2689, 0.2816), strict=True)):
        pixels = dataset.train.images[..., channel].numpy()
        share = sum(np.bincount(part.ravel(), minlength=256) for part in np.array_split(pixels, 50)) / pixels.size
        assert abs(share @ values - mean) < 1e-4
        assert abs((share @ (values - mean) ** 2) ** 0.5 - std) < 1e-4
