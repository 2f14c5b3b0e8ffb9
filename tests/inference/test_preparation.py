"""Image files of the user, read in batches."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mixmo.inference.preparation import find_images, read_images
from mixmo.models.metadata import About
from mixmo.utils.errors import UserError

GREY = About((1, 8, 8), (0.5,), (0.25,), resize=10)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Seven images of 10 x 10 pixels in the colours 0 to 6, with a frame."""
    for number in range(7):
        pixels = np.full((10, 10, 3), 255, np.uint8)
        pixels[1:9, 1:9] = number
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    return [str(tmp_path / f"{number}.png") for number in range(7)]


def test_each_batch_is_read_while_the_one_before_is_used(files: list[str]) -> None:
    """And no other: two are in memory at most. The network sees the grey middle."""
    asked = list[str]()

    def paths() -> Iterator[str]:
        for path in files:
            asked.append(path)
            yield path

    so_far, found = [], []
    for read in read_images(paths(), GREY, 2):
        so_far.append(len(asked))
        found.append(read)
    assert so_far == [4, 6, 7, 7]
    assert [read.paths for read in found] == [files[:2], files[2:4], files[4:6], files[6:]]
    images = torch.cat([read.images for read in found])
    assert torch.equal(images, torch.arange(7, dtype=torch.uint8)[:, None, None, None].expand(7, 8, 8, 1))
    assert list(read_images([], GREY, 2)) == []


def test_what_cannot_be_read_is_told_beside_the_rest(files: list[str]) -> None:
    Path(files[1]).write_text("not an image")
    Path(files[2]).unlink()
    first, second = read_images(files[:4], GREY, 2)
    assert (first.paths, first.failed) == ([files[0]], [(files[1], "is not an image")])
    assert (second.paths, second.failed) == ([files[3]], [(files[2], "cannot be read (No such file or directory)")])
    (nothing,) = read_images(files[1:3], GREY, 2)
    assert (nothing.paths, len(nothing.images), len(nothing.failed)) == ([], 0, 2)


def test_files_are_cut_to_squares(files: list[str]) -> None:
    with pytest.raises(UserError, match="the network sees 8 x 16 pixels, and files are only cut to squares; give"):
        next(read_images(files, About((1, 8, 16), (0.5,), (0.25,)), 2))


def test_files_and_folders(files: list[str], tmp_path: Path) -> None:
    Path(tmp_path / "notes.txt").touch()
    paths = find_images([Path(files[3]), tmp_path, tmp_path / "notes.txt", tmp_path / "absent.png"])
    assert [next(paths) for _ in range(9)] == [files[3], *files, str(tmp_path / "notes.txt")]  # a file as it is
    with pytest.raises(UserError, match=r"absent.png does not exist; give image files, or folders of them"):
        next(paths)
