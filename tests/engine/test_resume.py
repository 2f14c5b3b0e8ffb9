"""Continue a run with nothing but its folder, and for more epochs than planned where the schedule allows it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import mixmo
from helpers import assert_same
from mixmo import UserError
from mixmo.cli.app import main
from mixmo.engine import Runtime, train
from mixmo.recipes import Recipe, named
from mixmo.runs.directory import Run

RUNTIME = Runtime(device="cpu", quiet=True, keep_every=1)
STEPS = 5  # of an epoch
CONSTANT = named("digits/linear-mixmo").replace(epochs=2, width=1, batch_size=512, schedule="step", decay=())


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three epochs, planned so from the start."""
    return train(CONSTANT.replace(epochs=3), tmp_path_factory.mktemp("runs") / "planned", RUNTIME)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two epochs."""
    return train(CONSTANT, tmp_path_factory.mktemp("runs") / "finished", RUNTIME)


@pytest.fixture
def run(finished: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished.path, tmp_path / "run"))


def test_a_finished_run_trained_longer_equals_one_planned_so(run: Path, planned: Run) -> None:
    before = json.loads((run / "scores.json").read_text())
    assert_same(train(CONSTANT.replace(epochs=3), run, RUNTIME, resume=True), planned)
    assert json.loads((run / "scores-epoch2.json").read_text()) == before
    assert mixmo.load(run).about is not None  # its checksums are right


def test_a_run_trained_longer_can_be_stopped_and_resumed(run: Path, planned: Run) -> None:
    longer = CONSTANT.replace(epochs=3)
    train(longer, run, RUNTIME, resume=True, until=2 * STEPS + 1)
    assert (run / "scores-epoch2.json").is_file()
    assert (run / "last.safetensors").is_file()
    assert not (run / "scores.json").exists()
    assert_same(train(longer, run, RUNTIME, resume=True), planned)


@pytest.mark.parametrize("failing", ["unlink", "rename", "write_bytes"])
def test_an_error_while_the_epochs_change_loses_nothing(
    run: Path, finished: Run, planned: Run, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, failing, full)
        with pytest.raises((UserError, OSError), match="No space left"):
            train(CONSTANT.replace(epochs=3), run, RUNTIME, resume=True)
    assert_same(train(CONSTANT, run, RUNTIME, resume=True), finished)
    assert_same(train(CONSTANT.replace(epochs=3), run, RUNTIME, resume=True), planned)


def test_the_epochs_of_an_unfinished_run_can_change_before_the_first_decay(tmp_path: Path) -> None:
    cut = named("digits/cut-mixmo").replace(width=1, batch_size=512, epochs=12, schedule="step", decay=(0.5,))
    train(cut, tmp_path / "run", RUNTIME, until=STEPS + 2)
    longer = cut.replace(epochs=24)
    changed = train(longer, tmp_path / "run", RUNTIME, resume=True, until=2 * STEPS)
    whole = train(longer, tmp_path / "whole", RUNTIME, until=2 * STEPS)
    names = [f"checkpoints/{2 * STEPS:08d}/{name}.safetensors" for name in ("weights", "optimizer")]
    assert all((changed.path / name).read_bytes() == (whole.path / name).read_bytes() for name in names)


@pytest.mark.parametrize(
    ("changes", "epochs", "reason"),
    [
        ({"schedule": "cosine"}, 3, "learning rate"),
        ({"decay": (0.5,)}, 4, "learning rate"),
        ({"mask": "cut", "p": 0.5}, 3, "p in epoch 2"),
        ({}, 1, "has trained 2 already"),
    ],
)
def test_a_schedule_that_would_have_differed_is_rejected(
    tmp_path: Path, changes: dict[str, Any], epochs: int, reason: str
) -> None:
    recipe = CONSTANT.replace(**changes)
    done = train(recipe, tmp_path / "run", RUNTIME)
    before = {path: path.read_bytes() for path in done.path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=f"cannot be trained to {epochs} epochs.*{reason}"):
        train(recipe.replace(epochs=epochs), done.path, RUNTIME, resume=True)
    assert {path: path.read_bytes() for path in done.path.rglob("*") if path.is_file()} == before


def test_a_run_without_checkpoints_cannot_be_trained_longer(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match="checkpoints"):
        train(CONSTANT.replace(epochs=3), run, RUNTIME, resume=True)
    assert Run.open(run).recipe == CONSTANT


def test_all_networks_of_an_ensemble_are_trained_longer(tmp_path: Path) -> None:
    recipe = CONSTANT.replace(networks=2, epochs=1)
    train(recipe, tmp_path / "run", RUNTIME)
    longer = train(recipe.replace(epochs=2), tmp_path / "run", RUNTIME, resume=True)
    assert [Run.open(path).recipe.epochs for path in (longer.path, *longer.network_paths())] == [2, 2, 2]
    assert all(len(Run.open(path).read_metrics()) == 2 for path in longer.network_paths())


def command(out: Path, *words: str) -> int:
    return main(["train", "--resume", "--out", str(out), "--device", "cpu", *words])


def test_the_command_resumes_with_the_folder_alone(
    tmp_path: Path, planned: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe: Recipe = planned.recipe
    train(recipe, tmp_path / "run", RUNTIME, until=STEPS + 2)
    assert command(tmp_path / "run") == 0
    assert "7 steps are done" in capsys.readouterr().err
    assert_same(Run.open(tmp_path / "run"), planned)
    assert command(tmp_path / "run", "--width", "2") == 2
    assert "width 1 -> 2" in capsys.readouterr().err
    assert command(tmp_path / "run", "--epochs", "4") == 0
    assert "planned for 3 epochs" in capsys.readouterr().err
    assert Run.open(tmp_path / "run").recipe == recipe.replace(epochs=4)
    assert command(tmp_path / "nowhere") == 2
    assert "not a run directory" in capsys.readouterr().err
