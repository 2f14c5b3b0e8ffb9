"""Files are read in batches; files and uint8 images are resized and cropped as in training."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mixmo.data.decode import LISTED
from mixmo.inference.preparation import find_images, read_images, resize_and_crop
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


def test_at_most_two_batches_of_files_are_in_memory(files: list[str]) -> None:
    """Each batch is read while the one before is used; the grey middle is cropped."""
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


def test_unreadable_files_are_returned_with_the_reason(files: list[str]) -> None:
    Path(files[1]).write_text("not an image")
    Path(files[2]).unlink()
    first, second = read_images(files[:4], GREY, 2)
    assert (first.paths, first.failed) == (
        [files[0]],
        [(files[1], f"not an image of a supported format ({LISTED})")],
    )
    assert (second.paths, second.failed) == ([files[3]], [(files[2], "cannot be read (No such file or directory)")])
    (nothing,) = read_images(files[1:3], GREY, 2)
    assert (nothing.paths, len(nothing.images), len(nothing.failed)) == ([], 0, 2)


def test_files_for_a_network_of_rectangular_images_raise(files: list[str]) -> None:
    with pytest.raises(UserError, match="8 x 16"):
        next(read_images(files, About((1, 8, 16), (0.5,), (0.25,)), 2))


def test_folders_are_searched_and_files_taken_as_they_are(files: list[str], tmp_path: Path) -> None:
    Path(tmp_path / "notes.txt").touch()
    paths = find_images([Path(files[3]), tmp_path, tmp_path / "notes.txt", tmp_path / "absent.png"])
    assert [next(paths) for _ in range(9)] == [files[3], *files, str(tmp_path / "notes.txt")]  # a file as it is
    with pytest.raises(UserError, match=r"absent.png"):
        next(paths)


@pytest.mark.parametrize("shape", [(64, 64), (40, 61), (75, 40), (20, 20)])
@pytest.mark.parametrize("resize", [None, 36])
def test_uint8_images_are_resized_and_cropped_as_files_are(
    shape: tuple[int, int], resize: int | None, tmp_path: Path
) -> None:
    """Up to rounding of interpolated pixels; smooth images, as pixels of noise amplify it."""
    about = About((3, 32, 32), (0.5,) * 3, (0.2,) * 3, resize=resize)
    y, x = np.mgrid[: shape[0], : shape[1]] / max(shape)
    pixels = (255 * np.stack([x, y, x * y], -1)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    (read,) = read_images([str(tmp_path / "image.png")], about, 1)
    images = resize_and_crop(torch.from_numpy(pixels)[None], about)
    assert images.dtype == torch.uint8
    assert images.shape == (1, 32, 32, 3)
    assert (images.int() - read.images.int()).abs().max() <= 1


def test_images_of_the_size_of_the_network_are_unchanged() -> None:
    images = torch.randint(256, (2, 8, 8, 1), dtype=torch.uint8)
    assert resize_and_crop(images, GREY) is images  # although GREY.resize is 10
