"""Damaged checkpoints and logs: errors name the file, unneeded files are ignored, user files stay."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from mixmo import UserError
from mixmo.data.types import Dataset, Split
from mixmo.engine import Runtime, train
from mixmo.recipes import named
from mixmo.runs.checkpoint import Checkpoints
from mixmo.runs.directory import Run
from mixmo.storage import checksums

SMALL = named("digits/cut-mixmo").replace(epochs=3, width=1, batch_size=512)
STEPS = 5  # an epoch
LOGGED = SMALL.replace(epochs=4)
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
def test_a_damaged_newest_checkpoint_is_named(copy: Path, name: str, content: bytes) -> None:
    (path,) = (copy / "checkpoints").glob(name)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"00000007 cannot be used: .*remove that folder") as error:
        train(SMALL, copy, QUIET, resume=True)
    assert "\n" not in str(error.value)


def test_weights_of_another_network_are_rejected(copy: Path, tmp_path: Path) -> None:
    other = train(SMALL.replace(members=3), tmp_path / "other", QUIET, until=2).path / "checkpoints" / "00000002"
    for name in ("weights.safetensors", "optimizer.safetensors"):
        mine = copy / "checkpoints" / "00000007" / name
        kept = mine.read_bytes()
        mine.write_bytes((other / name).read_bytes())
        with pytest.raises(UserError, match=f"00000007 cannot be used: .*{name}.* of another") as error:
            train(SMALL, copy, QUIET, resume=True)
        assert "\n" not in str(error.value)
        mine.write_bytes(kept)


def flip(path: Path) -> None:
    """One bit, amid the tensors."""
    content = bytearray(path.read_bytes())
    content[-len(content) // 4] ^= 0x40
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name",
    ["checkpoints/00000007/weights.safetensors", "checkpoints/00000007/optimizer.safetensors", "checkpoints/best-*"],
)
def test_a_flipped_bit_is_noticed(copy: Path, name: str) -> None:
    (path,) = copy.glob(name)
    flip(path)
    with pytest.raises(UserError, match=rf"00000007 cannot be used: .*{path.name} is not as it was"):
        train(SMALL, copy, QUIET, resume=True)


def test_checkpoints_of_another_seed_are_rejected(copy: Path, tmp_path: Path) -> None:
    other = train(SMALL.replace(seed=1), tmp_path / "other", QUIET, until=STEPS + 2).path
    shutil.rmtree(copy / "checkpoints")
    shutil.copytree(other / "checkpoints", copy / "checkpoints")
    with pytest.raises(UserError, match=r"00000007 cannot be used: .*recipe.yaml is not as it was"):
        train(SMALL, copy, QUIET, resume=True)


def test_an_edited_recipe_is_rejected(copy: Path) -> None:
    changed = SMALL.replace(lr=2 * SMALL.lr)
    Run.open(copy).write_recipe(changed)
    with pytest.raises(UserError, match=r"00000007 cannot be used: .*recipe.yaml is not as it was"):
        train(changed, copy, QUIET, resume=True)


def test_a_changed_data_set_is_rejected(copy: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (copy / "dataset.json").read_bytes()
    renamed = digits._replace(classes=(*digits.classes[:-1], "ten"))
    fewer = digits._replace(train=Split(digits.train.resident[:-1], digits.train.labels[:-1]))
    for changed, word in ((renamed, "classes: 9 -> ten"), (fewer, "images: 1437 -> 1436")):
        monkeypatch.setattr("mixmo.data.load", lambda *_, changed=changed: changed)
        with pytest.raises(UserError, match=word):
            train(SMALL, copy, QUIET, resume=True)
        assert (copy / "dataset.json").read_bytes() == before


def test_a_checkpoint_without_checksums_can_be_resumed(copy: Path) -> None:
    """Without checksums."""
    (copy / "checkpoints" / "00000007" / checksums.NAME).unlink()
    train(SMALL, copy, QUIET, resume=True, until=STEPS + 3)
    assert "weights.safetensors" in (copy / "checkpoints" / f"{STEPS + 3:08d}" / checksums.NAME).read_text()


def test_checkpoints_behind_a_link_can_be_resumed(copy: Path, tmp_path: Path) -> None:
    moved = tmp_path / "large" / "disk"
    moved.parent.mkdir()
    (copy / "checkpoints").rename(moved)
    (copy / "checkpoints").symlink_to(moved)
    train(SMALL, copy, QUIET, resume=True, until=STEPS + 3)


def test_damaged_best_weights_are_written_again(copy: Path) -> None:
    """Trained from the start again, their file is written again."""
    (best,) = (copy / "checkpoints").glob("best-*")
    whole = best.read_bytes()
    flip(best)
    for checkpoint in (copy / "checkpoints").glob("0*"):
        shutil.rmtree(checkpoint)
    train(SMALL, copy, QUIET, resume=True, until=STEPS + 1)
    assert best.read_bytes() == whole


def test_a_run_that_is_removed_stays_removed(tmp_path: Path) -> None:
    """It is not made again without its recipe, which no --resume could continue."""
    out = tmp_path / "run"

    class Remover:
        def log_metrics(self, *_: object) -> None:
            shutil.rmtree(out)

        def log_hyperparams(self, *_: object) -> None: ...
        def finalize(self, *_: object) -> None: ...

    with pytest.raises(UserError, match=r"could not be written .* restore its folder"):
        train(SMALL, out, QUIET, loggers=[Remover()])
    assert not out.exists()


@pytest.mark.parametrize("damage", [lambda path: path.write_text("{"), lambda path: path.unlink()])
def test_a_damaged_older_checkpoint_is_ignored(copy: Path, damage: Callable[[Path], object]) -> None:
    damage(copy / "checkpoints" / f"{STEPS:08d}" / "state.json")
    train(SMALL, copy, QUIET, resume=True, until=STEPS + 3)
    assert (copy / "checkpoints" / f"{STEPS:08d}" / "weights.safetensors").is_file()


def test_a_checkpoint_without_state_is_written_again(copy: Path) -> None:
    (copy / "checkpoints" / "00000007" / "state.json").unlink()
    train(SMALL, copy, QUIET, resume=True, until=STEPS + 2)
    assert Checkpoints(copy / "checkpoints").latest() == copy / "checkpoints" / "00000007"


def test_other_folders_beside_the_checkpoints_stay(copy: Path) -> None:
    """Only folders that are called by a step are checkpoints; others are neither read nor removed."""
    folder = copy / "checkpoints"
    shutil.copytree(folder / "00000007", folder / "00000007 before the holidays")
    assert Checkpoints(folder).latest() == folder / "00000007"
    train(SMALL, copy, QUIET, resume=True, until=STEPS + 3)
    assert (folder / "00000007 before the holidays" / "weights.safetensors").is_file()
    assert not (folder / "00000007").exists()


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped in the fourth epoch: metrics.jsonl has three lines."""
    return train(LOGGED, tmp_path_factory.mktemp("logged") / "run", QUIET, until=3 * STEPS + 1).path


def rejected(path: Path, word: str) -> None:
    """By --resume, which leaves the log as it is."""
    log = path / "metrics.jsonl"
    before = log.read_bytes()
    with pytest.raises(UserError, match=word):
        train(LOGGED, path, QUIET, resume=True)
    assert log.read_bytes() == before
    assert not (path / "scores.json").exists()


def test_resume_rejects_a_log_with_a_changed_line(logged: Path, tmp_path: Path) -> None:
    """Without that line, training continues."""
    path = Path(shutil.copytree(logged, tmp_path / "run"))
    log = path / "metrics.jsonl"
    one, two, three = log.read_text().splitlines(keepends=True)
    number = json.loads(two)["train"]["loss"]
    log.write_text(one + two.replace(str(number), str(number + 1)) + three)
    rejected(path, "epoch 2")
    log.write_text(one + three)
    with pytest.warns(UserWarning, match=r"has lost its lines of epoch 2; restore it"):
        run = train(LOGGED, path, QUIET, resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [line["epoch"] for line in run.read_metrics()] == [1, 3, 4]


def test_reading_an_unfinished_run_warns_of_lost_lines(logged: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(logged, tmp_path / "run"))
    log = path / "metrics.jsonl"
    log.write_text(log.read_text().splitlines(keepends=True)[0])
    with pytest.warns(UserWarning, match=r"has lost its lines of epochs 2, 3; restore it"):
        assert len(Run.open(path).read_metrics()) == 1
    log.unlink()
    with pytest.warns(UserWarning, match=r"has lost its lines of epochs 1, 2, 3; restore it"):
        assert Run.open(path).read_metrics() == []


def test_resume_rejects_the_log_of_another_training(logged: Path, tmp_path: Path) -> None:
    other = train(LOGGED.replace(seed=1), tmp_path / "other", QUIET, until=3 * STEPS)
    path = Path(shutil.copytree(logged, tmp_path / "run"))
    shutil.copy(other.path / "metrics.jsonl", path)
    rejected(path, "epochs 1, 2, 3")


def test_resume_rejects_a_log_with_a_line_twice(logged: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(logged, tmp_path / "run"))
    one, two, three = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text(one + two + two + three)
    rejected(path, "line 3")


def test_other_line_ends_of_the_log_are_accepted(logged: Path, tmp_path: Path) -> None:
    """Other ends of lines, or what a killed process wrote after its last checkpoint."""
    path = Path(shutil.copytree(logged, tmp_path / "run"))
    whole = (path / "metrics.jsonl").read_bytes()
    (path / "metrics.jsonl").write_bytes(whole.replace(b"\n", b"\r\n") + b'{"epoch": 4}\r\n{"epoch": 5, "st')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(LOGGED, path, QUIET, resume=True, until=3 * STEPS + 2)
    assert (path / "metrics.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    "field",
    [
        {"seconds": 10**400},
        {"best_top1": -(10**400)},
        {"best_nll": None},
        {"meter": [10**400, 1, 1, 1]},
        {"maxima": {"core": 10**400}},
        {"meter": []},
        {"meter": [1.0, 1.0, 1.0]},
        {"teacher": 3},
        {"epochs_logged": 99},
        {"step": 10**6},
    ],
)
def test_a_state_that_no_training_writes_is_rejected(copy: Path, field: dict[str, object]) -> None:
    newest = copy / "checkpoints" / "00000007"
    (newest / "state.json").write_text(json.dumps(json.loads((newest / "state.json").read_text()) | field))
    (newest / checksums.NAME).unlink()
    with pytest.raises(UserError, match=r"state.json is damaged|does not fit .* a training of 15 steps"):
        train(SMALL, copy, QUIET, resume=True)


def test_a_state_without_line_checksums_can_be_resumed(logged: Path, tmp_path: Path) -> None:
    """Its checkpoints remember nothing of the lines; those of the next training do."""
    path = Path(shutil.copytree(logged, tmp_path / "run"))
    newest = path / "checkpoints" / f"{3 * STEPS + 1:08d}"
    state = json.loads((newest / "state.json").read_text())
    del state["logged"]
    (newest / "state.json").write_text(json.dumps(state))
    (newest / checksums.NAME).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(LOGGED, path, QUIET, resume=True, until=3 * STEPS + 2)
    assert len(json.loads((path / "checkpoints" / f"{3 * STEPS + 2:08d}" / "state.json").read_text())["logged"]) == 3
