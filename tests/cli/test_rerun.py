"""`mixmo rerun` trains a recipe again and compares."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from mixmo.cli.app import main
from mixmo.engine import Runtime, train
from mixmo.evaluation.reproducibility import compare_trainings
from mixmo.recipes import named
from mixmo.runs.directory import Run
from mixmo.storage import checksums

RUNTIME = Runtime(device="cpu", quiet=True, score_every=2)
RECIPE = named("digits/cut-mixmo").replace(epochs=2, width=1, batch_size=128, networks=2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(RECIPE, tmp_path_factory.mktemp("rerun") / "run", RUNTIME)


@pytest.fixture(scope="module")
def seed(trained: Run) -> Run:
    """Another seed."""
    return train(RECIPE.replace(seed=5), trained.path.with_name("seed"), RUNTIME)


@pytest.fixture
def run(trained: Run, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(trained.path, tmp_path / "run"))


def elsewhere(run: Run) -> None:
    """Let the run have been trained with another torch."""
    for path in run.network_paths():
        environment = json.loads((path / "environment.json").read_text())
        (path / "environment.json").write_text(json.dumps({**environment, "torch": "2.11.0"}))
        (path / checksums.NAME).unlink()


def test_a_rerun_is_identical_on_the_same_machine(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the options of the run, such as how often it was scored."""
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert main(["rerun", str(run.path), "--quiet", "--out", str(tmp_path / "again")]) == 0
    out = capsys.readouterr().out
    assert "identical, bit for bit" in out
    assert "same environment" in out
    assert Run.open(tmp_path / "again").is_finished()
    assert files == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_a_difference_in_the_same_environment_is_an_error(
    run: Run, seed: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mixmo.cli.rerun.train", lambda *_: seed)
    assert main(["rerun", str(run.path), "--quiet"]) == 1
    said = capsys.readouterr()
    assert "not identical: 0/last.safetensors, 0/best.safetensors" in said.out
    assert "the environment is the same, the results are not" in said.err


def test_elsewhere_another_seed_is_within_the_tolerance_and_another_recipe_is_not(
    run: Run, seed: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(run)
    found = compare_trainings(run, seed)
    assert found.reproduced
    assert found.environment["torch"] == ("2.11.0", torch.__version__)
    shorter = train(RECIPE.replace(epochs=1), tmp_path / "shorter", RUNTIME)
    assert not compare_trainings(run, shorter).reproduced
    monkeypatch.setattr("mixmo.cli.rerun.train", lambda *_: shorter)
    assert main(["rerun", str(run.path), "--quiet"]) == 1
    said = capsys.readouterr()
    assert said.out.index("2.11.0") < said.out.index("NLL")  # environment first
    assert "NLL differs by" in said.err


def test_a_published_run_without_logits_is_an_error_before_the_training(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.path / "1" / "logits-last.safetensors").unlink()
    monkeypatch.setattr("mixmo.cli.rerun.train", lambda *_: pytest.fail("it was trained"))
    assert main(["rerun", str(run.path), "--quiet"]) == 2
    assert "logits-last.safetensors" in capsys.readouterr().err


def test_on_another_kind_of_device_the_step_is_compiled_as_it_is_there_by_default(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in run.network_paths():
        environment = json.loads((path / "environment.json").read_text())
        gpu = {**environment, "device": "cuda", "options": {**environment["options"], "compile": True}}
        (path / "environment.json").write_text(json.dumps(gpu))
        (path / checksums.NAME).unlink()
    runtimes = list[Runtime]()
    monkeypatch.setattr("mixmo.cli.rerun.train", lambda _, __, runtime: runtimes.append(runtime) or run)
    assert main(["rerun", str(run.path), "--quiet", "--device", "cpu"]) == 0
    assert [(runtime.compile, runtime.score_every) for runtime in runtimes] == [(None, 2)]


def test_an_unfinished_run_is_an_error(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    (run.path / "1" / "scores.json").unlink()
    assert main(["rerun", str(run.path)]) == 2
    assert "is unfinished" in capsys.readouterr().err
