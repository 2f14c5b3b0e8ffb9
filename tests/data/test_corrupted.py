from pathlib import Path

import numpy as np
import pytest
import torch

from mixmo.data.corrupted import COMMON, EXTRA, corrupted
from mixmo.utils.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four images under two corruptions; a pixel tells corruption, severity and image."""
    np.save(tmp_path / "labels.npy", np.tile([3, 1, 4, 1], 5).astype(np.uint8))
    for number, name in enumerate(("snow", "fog")):
        images = np.zeros((20, 32, 32, 3), np.uint8)
        images += (number * 100 + np.arange(20)).astype(np.uint8)[:, None, None, None]
        np.save(tmp_path / f"{name}.npy", images)
    return tmp_path


def test_every_corruption_is_listed_at_every_severity(folder: Path):
    seen = []
    for cell in corrupted(folder):
        name, severity, split = cell.name, cell.severity, cell.split
        seen.append((name, severity))
        assert split.images.dtype == torch.uint8
        assert split.labels.dtype == torch.int64
        assert split.labels.tolist() == [3, 1, 4, 1]
        first = 100 * (name == "fog") + 4 * (severity - 1)
        assert split.images[:, 7, 9, 2].tolist() == list(range(first, first + 4))
    assert seen == [(name, severity) for name in ("fog", "snow") for severity in range(1, 6)]


@pytest.fixture
def four(folder: Path) -> Path:
    """The same files read as four severities of five images."""
    np.save(folder / "labels.npy", np.tile([3, 1, 4, 1, 5], 4))
    return folder


def test_severities_txt_lists_the_severities(four: Path):
    (four / "severities.txt").write_text("1 2 3 5\n")
    cells = corrupted(four)
    assert cells[0].split.labels.tolist() == [3, 1, 4, 1, 5]
    assert [cell.severity for cell in cells] == [1, 2, 3, 5] * 2
    assert cells[3].split.images[:, 7, 9, 2].tolist() == [100 + n for n in range(15, 20)]


def test_files_are_mapped_and_not_read(tmp_path: Path):
    """The published size, as sparse files: 3 GB that are never read."""
    np.save(tmp_path / "labels.npy", np.tile(np.arange(10_000) % 10, 5))
    for name in COMMON + EXTRA:
        np.lib.format.open_memmap(tmp_path / f"{name}.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    splits = [(cell.name, cell.severity, cell.split.images.shape) for cell in corrupted(tmp_path)]
    assert [(name, severity) for name, severity, _ in splits] == [
        (name, severity) for name in sorted(COMMON + EXTRA) for severity in range(1, 6)
    ]
    assert {shape for _, _, shape in splits} == {(10_000, 32, 32, 3)}


def test_there_are_15_and_4_corruptions():
    assert len(set(COMMON)) == 15
    assert len(set(COMMON + EXTRA)) == 19


def assert_rejected(folder: Path, name: str, word: str) -> None:
    with pytest.raises(UserError, match=word) as caught:
        corrupted(folder)  # not when a cell is used: before any work
    assert str(folder / name) in str(caught.value)


def test_missing_labels_are_named(folder: Path):
    (folder / "labels.npy").unlink()
    assert_rejected(folder, "labels.npy", "missing")


def test_a_missing_folder_is_named(tmp_path: Path):
    assert_rejected(tmp_path / "CIFAR-10-C", "labels.npy", "missing")


def test_a_folder_without_corruptions_is_rejected(folder: Path):
    for name in ("fog", "snow"):
        (folder / f"{name}.npy").unlink()
    assert_rejected(folder, "", "CORRUPTION.npy")


@pytest.mark.parametrize("name", ["fog.npy", "labels.npy"])
@pytest.mark.parametrize("length", [-1, 100, 5, 0])
def test_truncated_files_are_named(folder: Path, name: str, length: int):
    (folder / name).write_bytes((folder / name).read_bytes()[:length])
    assert_rejected(folder, name, "truncated")


def test_pickled_objects_are_rejected(folder: Path):
    np.save(folder / "fog.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert_rejected(folder, "fog.npy", "truncated")


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((16, 32, 32, 3), np.uint8),
        np.zeros((20, 3, 32, 32), np.uint8),
        np.zeros((20, 32, 32, 3), np.float32),
        np.zeros((20, 64, 64, 3), np.uint8),
    ],
)
def test_images_of_another_shape_or_type_are_rejected(folder: Path, array: np.ndarray):
    np.save(folder / "snow.npy", array)
    assert_rejected(folder, "snow.npy", "uint8")


@pytest.mark.parametrize("array", [np.zeros((20, 1), int), np.zeros(20), np.zeros(0, int), np.zeros(19, int)])
def test_labels_of_another_shape_or_type_are_rejected(folder: Path, array: np.ndarray):
    np.save(folder / "labels.npy", array)
    assert_rejected(folder, "labels.npy", "labels")


def test_labels_that_differ_between_severities_are_rejected(folder: Path):
    np.save(folder / "labels.npy", np.arange(20) % 10)
    assert_rejected(folder, "labels.npy", "labels")
