import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from mixmo.data import cache
from mixmo.data.cache import cached, fingerprint
from mixmo.data.decode import Decoded, Sample

IMAGES = np.arange(5 * 4 * 4 * 3, dtype=np.uint8).reshape(5, 4, 4, 3)
SHAPE = (8, 4, 4, 3)  # of which three cannot be read


class Builder:
    """Counts how often it had to build."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Decoded:
        self.times += 1
        return Decoded(IMAGES.copy(), np.array([0, 1, 2, 4, 7]))


def same(decoded: Decoded) -> bool:
    return np.array_equal(decoded.images, IMAGES) and decoded.kept.tolist() == [0, 1, 2, 4, 7]


def folders(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".mixmo-cache").iterdir())


def test_built_once_and_mapped_afterwards(tmp_path: Path):
    build = Builder()
    first = cached(tmp_path, "train", "aa", SHAPE, build)
    second = cached(tmp_path, "train", "aa", SHAPE, build)
    assert build.times == 1
    assert same(first)
    assert same(second)
    assert isinstance(first.images, np.memmap)  # what was built leaves the memory
    assert isinstance(second.images, np.memmap)
    assert folders(tmp_path) == ["train-aa"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch complains of arrays it may not write
        torch.from_numpy(second.images)


def test_a_stale_cache_is_rebuilt_and_removed(tmp_path: Path):
    build = Builder()
    for stamp in ("aa", "bb"):
        cached(tmp_path, "train", stamp, SHAPE, build)
        cached(tmp_path, "val", stamp, SHAPE, build)
    cached(tmp_path, "train-64", "cc", SHAPE, build)
    assert build.times == 5
    assert folders(tmp_path) == ["train-64-cc", "train-bb", "val-bb"]


@pytest.mark.parametrize("name", ["images.npy", "kept.npy"])
@pytest.mark.parametrize("damage", ["truncate", "remove", "text", "other"])
def test_a_damaged_cache_is_rebuilt(tmp_path: Path, name: str, damage: str):
    build = Builder()
    cached(tmp_path, "train", "aa", SHAPE, build)
    path = tmp_path / ".mixmo-cache" / "train-aa" / name
    if damage == "truncate":
        path.write_bytes(path.read_bytes()[:-20])
    elif damage == "remove":
        path.unlink()
    elif damage == "text":
        path.write_text("nothing")
    else:
        np.save(path, np.zeros(3))
    assert same(cached(tmp_path, "train", "aa", SHAPE, build))
    assert same(cached(tmp_path, "train", "aa", SHAPE, build))
    assert build.times == 2


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("images.npy", IMAGES[:, :2]),
        ("images.npy", IMAGES[..., 0]),
        ("images.npy", IMAGES.astype(np.float32)),
        ("images.npy", np.uint8(3)),
        ("kept.npy", np.array([0, 1, 2, 4], np.int64)),
        ("kept.npy", np.array([0, 1, 2, 4, 7], np.int32)),
    ],
)
def test_arrays_of_another_kind_are_rebuilt(tmp_path: Path, name: str, array: np.ndarray):
    build = Builder()
    cached(tmp_path, "train", "aa", SHAPE, build)
    np.save(tmp_path / ".mixmo-cache" / "train-aa" / name, array)
    assert same(cached(tmp_path, "train", "aa", SHAPE, build))
    assert build.times == 2


def test_a_failure_while_writing_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, array: np.ndarray) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    build = Builder()
    with monkeypatch.context() as patch:
        patch.setattr(cache.np, "save", full)
        with pytest.warns(UserWarning, match="No space left") as caught:
            assert same(cached(tmp_path, "train", "aa", SHAPE, build))
    assert len(caught) == 1
    assert str(tmp_path / ".mixmo-cache") in str(caught[0].message)
    assert folders(tmp_path) == []
    assert same(cached(tmp_path, "train", "aa", SHAPE, build))
    assert build.times == 2
    assert folders(tmp_path) == ["train-aa"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_has_no_cache(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.warns(UserWarning, match="cannot be written"):
        assert same(cached(tmp_path, "train", "aa", SHAPE, Builder()))
    tmp_path.chmod(0o700)


def test_a_folder_that_cannot_be_made_has_no_cache(tmp_path: Path):
    (tmp_path / ".mixmo-cache").write_text("a file in its place")
    with pytest.warns(UserWarning, match="cannot be written"):
        assert same(cached(tmp_path, "train", "aa", SHAPE, Builder()))


def test_fingerprint_changes_with_names_sizes_and_times(tmp_path: Path):
    here = tmp_path / "here"
    here.mkdir()
    for name in "abc":
        (here / name).write_text(name)
    samples = [Sample(str(here / name), "x") for name in "abc"]
    stamp = fingerprint(here, samples)
    assert stamp == fingerprint(here, [Sample(path, "y") for path, _ in samples])  # labels are not in the cache
    assert stamp != fingerprint(here, samples[:2])
    assert stamp != fingerprint(here, samples[::-1])
    there = tmp_path / "there"
    shutil.copytree(here, there)  # keeps times
    assert stamp == fingerprint(there, [Sample(str(there / name), "x") for name in "abc"])
    os.utime(here / "a", (1, 1))
    touched = fingerprint(here, samples)
    (here / "b").write_text("bb")
    resized = fingerprint(here, samples)
    (here / "b").unlink()
    assert len({stamp, touched, resized, fingerprint(here, samples)}) == 4
    absent = [Sample(str(here / os.fsdecode(name)), "x") for name in (b"absent", b"\xff")]  # a name that is no UTF-8
    lists = ([], absent[:1], absent[1:], absent, absent[::-1])
    assert len({fingerprint(here, listed) for listed in lists}) == 5
    Path(absent[1].path).touch()
    assert fingerprint(here, absent[1:]) not in {fingerprint(here, listed) for listed in ([], absent[:1])}


def test_permission_to_read_changes_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It changes neither size nor time of a file: the cache must not outlive it."""
    (tmp_path / "a").touch()
    samples = [Sample(str(tmp_path / "a"), "x")]
    stamp = fingerprint(tmp_path, samples)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert fingerprint(tmp_path, samples) != stamp


def test_the_draft_of_a_killed_process_is_removed(tmp_path: Path):
    (tmp_path / ".mixmo-cache" / ".train.draft").mkdir(parents=True)
    cached(tmp_path, "train", "aa", SHAPE, Builder())
    assert folders(tmp_path) == ["train-aa"]


def test_another_version_is_another_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = fingerprint(tmp_path, [])
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    assert fingerprint(tmp_path, []) != before
