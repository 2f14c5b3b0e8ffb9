"""Image files read while training: in order, the same as in memory, whatever cannot be read replaced and named."""

import multiprocessing
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mixmo import UserError, data
from mixmo.data import stream
from mixmo.data.decode import SkippedImages
from mixmo.data.stream import NOTHING, Files, room
from mixmo.data.types import Dataset, Split
from mixmo.utils import memory

SIZE = 12


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes of seven train images and three test images, of several shapes."""
    generator = np.random.default_rng(0)
    for part, count in (("train", 7), ("val", 3)):
        for label in ("cat", "dog"):
            (tmp_path / part / label).mkdir(parents=True)
            for i in range(count):
                pixels = generator.integers(0, 256, (16 + i, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / label / f"{i}.png")
    return tmp_path


def load(root: Path, streamed: bool | None, workers: int = 0) -> Dataset:
    return data.load(f"folder:{root}@{SIZE}", stream=streamed, workers=workers)


def files(root: Path, workers: int = 0) -> Files:
    images = load(root, True, workers).train.images
    assert isinstance(images, Files)
    return images


def read(images: Files, batches: list[list[int]]) -> list[Split]:
    return list(images.read(torch.tensor(batch) for batch in batches))


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_equals_resident(root: Path, workers: int) -> None:
    """Any numbers in any order, repeated or not, whichever worker has them."""
    resident, streamed = load(root, False), load(root, True, workers)
    images = streamed.train.images
    assert isinstance(images, Files)
    assert images.shape == resident.train.images.shape
    assert torch.equal(streamed.train.labels, resident.train.labels)
    batches = [[3, 1, 13], [0], [5, 5, 2, 4], [12, 11], [7, 8, 9]]
    pools = read(images, batches)
    assert len(pools) == len(batches)
    for pool, batch in zip(pools, batches, strict=True):
        assert torch.equal(pool.resident, resident.train.resident[batch])
        assert torch.equal(pool.labels, resident.train.labels[batch])
    scored = list(streamed.test.batches(4))
    assert torch.equal(torch.cat([part.resident for part in scored]), resident.test.resident)
    assert torch.equal(torch.cat([part.labels for part in scored]), resident.test.labels)
    (none,) = streamed.test.images[torch.arange(0)].batches(4, part=True)  # that of the last of many processes
    assert none.resident.shape == (0, SIZE, SIZE, 3)
    assert len(none.labels) == 0


def test_parts_are_chosen_by_number(root: Path) -> None:
    part = files(root)[torch.tensor([9, 2, 3])]
    assert len(part) == 3
    (pool,) = read(part, [[0, 2]])
    assert torch.equal(pool.resident, load(root, False).train.resident[[9, 3]])
    assert pool.labels.tolist() == [1, 0]


def test_unused_samples_are_not_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    original = stream.decode
    monkeypatch.setattr(stream, "decode", lambda path, size: opened.append(path) or original(path, size))
    (pool,) = read(files(root), [[1, NOTHING, 3]])
    assert len(opened) == 2
    assert pool.resident[1].sum() == 0


def test_workers_draw_no_random_number(root: Path) -> None:
    """Two workers cannot share a random stream if none has one: their generators are untouched after decoding."""
    decoder = stream._Decoder(SIZE)
    paths = [sample.path for sample in files(root).samples]

    def states() -> tuple[bytes, bytes, object]:
        return torch.get_rng_state().numpy().tobytes(), np.random.get_state()[1].tobytes(), random.getstate()

    before = states()
    one, _ = decoder[paths]
    assert states() == before
    torch.manual_seed(1)
    assert torch.equal(decoder[paths][0], one)
    orders = [torch.cat([pool.resident for pool in read(files(root, w), [[0, 1], [2, 3], [4, 5]])]) for w in (0, 1, 2)]
    assert torch.equal(orders[0], orders[1])
    assert torch.equal(orders[0], orders[2])


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_is_replaced_by_the_next_of_its_class(root: Path, workers: int) -> None:
    whole, images = load(root, False).train.resident.clone(), files(root, workers)
    (root / "train" / "cat" / "2.png").write_bytes(b"not an image")
    (root / "train" / "cat" / "3.png").unlink()
    (root / "train" / "dog" / "6.png").write_bytes(b"")
    says = r"3 of the 14 images of train-12 .* replaced .*cat/2.png.*cat/3.png.*dog/6.png$"
    with pytest.warns(SkippedImages, match=says):
        first = read(images, [[1, 2, 3], [13]])
    assert torch.equal(first[0].resident, whole[[1, 4, 4]])
    assert torch.equal(first[1].resident, whole[[7]]), "the last of a class is followed by the first"
    assert first[0].labels.tolist() + first[1].labels.tolist() == [0, 0, 0, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # told once
        again = read(images, [[1, 2, 3], [13]])
    assert all(torch.equal(a.resident, b.resident) for a, b in zip(first, again, strict=True))


def test_replacements_are_those_of_a_plain_loop(root: Path) -> None:
    whole, images = load(root, False).train.resident.clone(), files(root)
    broken = {0, 2, 3, 4, 8, 9, 10, 11, 12, 13}  # of the dogs, which begin at 7, only the first is left
    for number in broken:
        Path(images.samples[number].path).write_bytes(b"not an image")
    expected = torch.zeros_like(whole)
    for number in range(14):
        first = number // 7 * 7
        others = [first + (number - first + step) % 7 for step in range(7)]
        expected[number] = whole[next(other for other in others if other not in broken)]
    with pytest.warns(SkippedImages, match=r"10 of the 14 images of train-12 .*cat/0.png.*dog/1.png, \.\.\.$"):
        (pool,) = read(images, [list(range(14))])
    assert torch.equal(pool.resident, expected)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("count", [1, 4, 100])
def test_an_unreadable_image_is_not_scored(root: Path, workers: int, count: int) -> None:
    """Nor replaced, as in training: the same images in memory and streamed, in batches of any size."""
    (root / "val" / "cat" / "1.png").write_bytes(b"not an image")
    (root / "val" / "dog" / "2.png").unlink()
    (root / "val" / "dog" / "2.png").mkdir()
    (root / "val" / "dog" / "2.png" / "3.png").write_bytes(b"")
    says = r"2 of the 6 images of test-12 in .* cannot be read and are skipped: .*cat/1.png, .*dog/2.png/3.png$"
    with pytest.warns(SkippedImages, match=says):
        resident = load(root, False).test
    with pytest.warns(SkippedImages, match=says):
        streamed = list(load(root, True, workers).test.batches(count))
    assert torch.equal(torch.cat([part.resident for part in streamed]), resident.resident)
    assert torch.cat([part.labels for part in streamed]).tolist() == resident.labels.tolist() == [0, 0, 1, 1]


def test_nothing_to_score_is_an_error(root: Path) -> None:
    test = load(root, True).test
    (root / "val").rename(root / "elsewhere")
    with pytest.raises(UserError, match="none of the 6 images"):
        list(test.batches(4))
    with pytest.warns(SkippedImages, match=r"6 of the 6 images of test-12 in .* cannot be read and are skipped"):
        assert [len(batch.labels) for batch in test.batches(4, part=True)] == [0, 0]


def test_train_false_does_not_decode_the_training_images(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither decoded nor cached, and they take no room from the test images."""
    monkeypatch.setattr(data, "room", lambda device: 14 * SIZE * SIZE * 3)  # of the train images alone
    name = f"folder:{root}@{SIZE}"
    dataset = data.load(name, train=False)
    assert isinstance(dataset.train.images, Files)
    assert [path.name.rpartition("-")[0] for path in (root / ".mixmo-cache").iterdir()] == [f"test-{SIZE}"]
    assert torch.equal(dataset.test.resident, load(root, False).test.resident)
    assert isinstance(data.load(name).test.images, Files)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("count", [7, 20])
def test_a_class_without_a_readable_image_is_an_error(root: Path, workers: int, count: int) -> None:
    """However many images it has, and although the other images of the batch can be read."""
    for number in range(count):
        (root / "train" / "cat" / f"{number}.png").write_bytes(b"not an image")
    images = files(root, workers)
    with pytest.raises(UserError, match=rf"none of the {count} images of class 'cat' in train-12 .*cat/0\.png"):
        read(images, [[0, count]])
    assert not images.unreadable, "none was replaced"


def test_files_that_come_back_are_used_again(root: Path) -> None:
    """A class is lost only if none of its files can be read now."""
    images = files(root)
    cats = [root / "train" / "cat" / f"{number}.png" for number in range(7)]
    contents = [path.read_bytes() for path in cats]
    for path in cats[:-1]:
        path.write_bytes(b"not an image")
    with pytest.warns(SkippedImages, match="6 of the 14 images"):
        (before,) = read(images, [[0, 1]])
    for path, content in zip(cats, contents, strict=True):
        path.write_bytes(content)
    cats[-1].write_bytes(b"not an image")
    with pytest.warns(SkippedImages, match="7 of the 14 images"):
        (after,) = read(images, [[6, 0]])
    assert torch.equal(before.resident[0], before.resident[1])
    assert torch.equal(after.resident[0], after.resident[1]), "cat/0 is the next one after the last"
    assert not torch.equal(after.resident[0], before.resident[0])


def test_a_long_damaged_stretch_is_searched_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, tried = files(root), []
    for number in range(6):
        (root / "train" / "cat" / f"{number}.png").write_bytes(b"not an image")

    def decode(path: str, size: int) -> Any:
        tried.append(Path(path).name)
        return original(path, size)

    original = stream.decode
    monkeypatch.setattr(stream, "decode", decode)
    with pytest.warns(SkippedImages):
        read(images, 2 * [[0], [1], [2]])
    replaced = [name for name in tried if name not in {"0.png", "1.png", "2.png"}]
    assert replaced == ["3.png", "4.png", "5.png", *["6.png"] * 6]


def test_a_lost_disk_is_an_error(root: Path) -> None:
    images = files(root)
    (root / "train").rename(root / "elsewhere")
    with pytest.raises(UserError, match="disk"):
        read(images, [[0, 8, 3]])


def test_only_sets_larger_than_the_memory_are_streamed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = 14 * SIZE * SIZE * 3, 6 * SIZE * SIZE * 3

    def kinds(free: int) -> tuple[bool, bool]:
        monkeypatch.setattr(data, "room", lambda device: free)
        dataset = load(root, None)
        return isinstance(dataset.train.images, Tensor), isinstance(dataset.test.images, Tensor)

    assert kinds(train + test) == (True, True)
    assert kinds(train + test - 1) == (True, False)
    assert kinds(train - 1) == (False, True), "a large train set does not keep a small test set from memory"
    assert kinds(0) == (False, False)


def test_room_is_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < room(torch.device("cpu")) < 2**50
    monkeypatch.setattr(memory, "free", lambda: 1001)
    assert room(torch.device("cpu")) == 500
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (801, 2000))
    assert room(torch.device("cuda")) == 400


def test_resident_images_of_a_stream_are_an_error(root: Path) -> None:
    with pytest.raises(UserError, match="streamed"):
        _ = load(root, True).train.resident


def test_an_interrupted_pass_still_names_unreadable_files(root: Path) -> None:
    (root / "train" / "cat" / "0.png").write_bytes(b"not an image")
    pools = files(root).read([torch.tensor([0, 1]), torch.tensor([2])])
    next(pools)
    with pytest.warns(SkippedImages, match=r"1 of the 14 images of train-12 .*cat/0.png"):
        pools.close()


def test_an_interrupted_pass_leaves_no_process(root: Path) -> None:
    pools = files(root, 2).read(torch.tensor([i % 14]) for i in range(100))
    next(pools)
    assert len(multiprocessing.active_children()) >= 2
    pools.close()
    assert not multiprocessing.active_children()
