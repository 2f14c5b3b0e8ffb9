"""Damaged checkpoints: what is wrong is said, what is not needed does not matter, nothing of the user's is removed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mixmo import UserError
from mixmo.engine import Runtime, train
from mixmo.engine.checkpoint import Checkpoints
from mixmo.recipes import named

SMALL = named("digits/cut-mixmo").replace(epochs=3, width=1, batch_size=512)
STEPS = 5  # an epoch
QUIET = Runtime(device="cpu", quiet=True, keep_every=1)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped in the second epoch; the checkpoint of the first is kept."""
    return train(SMALL, tmp_path_factory.mktemp("half") / "run", QUIET, until=STEPS + 2).path


@pytest.fixture
def copy(half: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half, tmp_path / "run"))


@pytest.mark.parametrize(
    "name", ["00000007/state.json", "00000007/weights.safetensors", "00000007/optimizer.safetensors", "best-*"]
)
@pytest.mark.parametrize("content", [b"", b"[1]", b'{"a": 1}', b"\xff\x00" * 99])
def test_the_newest(copy: Path, name: str, content: bytes) -> None:
    (path,) = (copy / "checkpoints").glob(name)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"checkpoints/00000007 cannot be used: .*; remove that folder") as error:
        train(SMALL, copy, QUIET, resume=True)
    assert "\n" not in str(error.value)


def test_of_another_network(copy: Path, tmp_path: Path) -> None:
    other = train(SMALL.replace(members=3), tmp_path / "other", QUIET, until=2).path / "checkpoints" / "00000002"
    for name in ("weights.safetensors", "optimizer.safetensors"):
        mine = copy / "checkpoints" / "00000007" / name
        kept = mine.read_bytes()
        mine.write_bytes((other / name).read_bytes())
        with pytest.raises(UserError, match=f"00000007 cannot be used: .*{name}.* of another") as error:
            train(SMALL, copy, QUIET, resume=True)
        assert "\n" not in str(error.value)
        mine.write_bytes(kept)


@pytest.mark.parametrize("damage", [lambda path: path.write_text("{"), lambda path: path.unlink()])
def test_an_older_one_that_is_kept_does_not_matter(copy: Path, damage: Callable[[Path], object]) -> None:
    damage(copy / "checkpoints" / f"{STEPS:08d}" / "state.json")
    train(SMALL, copy, QUIET, resume=True, until=STEPS + 3)
    assert (copy / "checkpoints" / f"{STEPS:08d}" / "weights.safetensors").is_file()


def test_the_users_own_copy_stays(copy: Path) -> None:
    """Only folders that are called by a step are checkpoints; others are neither read nor removed."""
    folder = copy / "checkpoints"
    shutil.copytree(folder / "00000007", folder / "00000007 before the holidays")
    assert Checkpoints(folder).latest() == folder / "00000007"
    train(SMALL, copy, QUIET, resume=True, until=STEPS + 3)
    assert (folder / "00000007 before the holidays" / "weights.safetensors").is_file()
    assert not (folder / "00000007").exists()
