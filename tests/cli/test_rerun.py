"""`mixmo rerun` trains a recipe again and compares."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

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


def change(run: Run, changed: dict[str, Any]) -> None:
    """Let the run have been made in another environment."""
    for path in run.network_paths():
        environment = json.loads((path / "environment.json").read_text())
        (path / "environment.json").write_text(json.dumps({**environment, **changed}))
        (path / checksums.NAME).unlink()


def elsewhere(run: Run) -> None:
    """Let the run have been trained with another torch."""
    change(run, {"torch": "2.11.0"})


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


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"options": {"logger": "http.server.test"}}, "unknown option 'logger'; there are: compact, compile, kernels"),
        ({"options": {"data": "/etc"}}, "unknown option 'data'"),
        ({"options": {"on_NaN": "stop"}}, "did you mean 'on_nan'?"),
        ({"options": {"on_nan": "forget"}}, "unknown on_nan 'forget'"),
        ({"options": {"score_every": 0}}, "score_every = 0; it must be int >= 1"),
        ({"options": {"compact": "yes"}}, "compact = 'yes'; it must be bool"),
        ({"options": {"compile": 1}}, "compile = 1; it must be bool | None"),
        ({"options": ["logger"]}, "options = ['logger']; give an object"),
        ({"threads": "x"}, "threads = 'x'; give a whole number"),
        ({"threads": -1}, "threads = -1; give a whole number"),
        ({"threads": 2.5}, "threads = 2.5; give a whole number"),
        ({"threads": None}, "threads = None; give a whole number"),
        ({"device": None}, "device = None; give the type of a device"),
        ({"device": ["cpu"]}, "device = ['cpu']; give the type of a device"),
        ({"device": "cpu\n\x1b[31m"}, "device = 'cpu\\n\\x1b[31m'; give the type of a device"),
        ({"device": "hpu"}, "device 'hpu' cannot be used here"),
    ],
)
def test_what_a_run_does_not_record_is_an_error_before_the_training(
    run: Run, changed: dict[str, Any], part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """environment.json may be a stranger's: a logger, for example, would be imported and called."""
    change(run, changed)
    monkeypatch.setattr("mixmo.engine.loggers.made", lambda *_: pytest.fail("a logger was made"))
    monkeypatch.setattr("mixmo.engine.training.Trainer", lambda *_, **__: pytest.fail("it was trained"))
    assert main(["rerun", str(run.path), "--quiet"]) == 2
    said = capsys.readouterr().err.rstrip("\n")
    assert part in said
    assert said.isprintable()


def test_a_rerun_takes_no_more_threads_than_there_are_cores(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    change(run, {"threads": 100_000_000})
    taken = list[int]()
    monkeypatch.setattr("torch.set_num_threads", taken.append)
    monkeypatch.setattr("mixmo.cli.rerun.train", lambda *_: run)
    assert main(["rerun", str(run.path), "--quiet"]) == 0
    assert taken == [max(os.cpu_count() or 1, torch.get_num_threads())]


def test_an_unfinished_run_is_an_error(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    (run.path / "1" / "scores.json").unlink()
    assert main(["rerun", str(run.path)]) == 2
    assert "is unfinished" in capsys.readouterr().err
