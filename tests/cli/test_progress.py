"""Commands show the progress of long work; functions do not, unless asked to."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import noise
from mixmo import data
from mixmo.cli.app import main
from mixmo.data.types import Dataset
from mixmo.engine import Runtime, train
from mixmo.engine.benchmark import Meter, Row
from mixmo.engine.estimate import estimate
from mixmo.engine.step_timer import StepTimer
from mixmo.engine.trainer import Trainer
from mixmo.evaluation.multiplex import score_multiplexed
from mixmo.evaluation.run_scores import score_runs
from mixmo.metrics import DIVERSITY
from mixmo.recipes import named
from mixmo.recipes.protocols import FACTS
from mixmo.runs.directory import Run
from mixmo.utils import progress
from mixmo.utils.progress import Work, shown

CPU = torch.device("cpu")
COMMANDS = {  # the work that each shows, and its number of parts if that is known
    "eval RUN --source weights": {"scoring runs": 2, "predicting test images": 360},
    "eval RUN --multiplex": {"measuring each number of images per pass": 2, "predicting images": 360},
    "eval RUN --on digits": {"scoring images": 360},
    "eval RUN --on FOLDER/test": {"scoring images": 6},
    "eval RUN --ood folder:FOLDER@16": {"decoding test-16 in FOLDER": 6, "predicting images of folder:FOLDER@16": 6},
    "predict RUN FOLDER": {"predicting images": 10},
    "analyse RUN": {"runs": 1, "analysing runs": 1, "comparing all predictors": len(DIVERSITY)},
    "export RUN --to OUT/net.pt2 --precision bf16": {"writing net.pt2": None, "measuring Top1": 720},
    "bench digits/vanilla --width 1 --seconds 0.01 --repeats 1": {"measuring vanilla, prediction": 4},
    "bench digits/cut-mixmo --width 1 --seconds 0.01 --repeats 1": {"measuring M=2, prediction, folded": 8},
    "show digits/cut-mixmo --width 1": {"warm-up steps": None, "timing steps": None},
    "data check folder:FOLDER@16": {"decoding train-16 in FOLDER": 4, "decoding test-16 in FOLDER": 6},
    "train digits/vanilla --width 1 --epochs 1 --networks 2 --out OUT/two": {"networks": 2, "training": 22},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four images to train on and six to test with, of two of the digits' classes."""
    return noise(tmp_path / "folder", {"train": 2, "test": 3}, "01", (16, 16))


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_show_the_progress_of_long_work(
    command: str, works: list[Work], runs: list[Run], folder: Path, tmp_path: Path
) -> None:
    def real(text: str) -> str:
        return text.replace("RUN", str(runs[0].path)).replace("FOLDER", str(folder)).replace("OUT", str(tmp_path))

    device = [] if command.startswith(("data", "export")) else ["--device", "cpu"]
    assert main([*map(real, command.split()), *device]) == 0
    by_name = {work.doing: work for work in works}
    for doing, total in COMMANDS[command].items():
        work = by_name[real(doing)]
        assert total in (None, work.total)
        assert total in (None, work.done)
    assert all(work.board is not None and not work.board.works for work in works)


def test_interrupted_bench_prints_the_results_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true = Meter.__call__

    def stopped(meter: Meter, what: str, *arguments: Any, **options: Any) -> Row:
        if what == "prediction":
            raise KeyboardInterrupt
        return true(meter, what, *arguments, **options)

    monkeypatch.setattr(Meter, "__call__", stopped)
    options = ["--width", "1", "--device", "cpu", "--seconds", "0.01", "--repeats", "1"]
    assert main(["bench", "digits/cut-mixmo", *options, "--json"]) == 130
    out, err = capsys.readouterr()
    rows = [(row["network"], row["what"]) for row in json.loads(out)["rows"]]
    assert rows == [("vanilla", what) for what in ("plain eager loop", "training step", "training end to end")]
    assert err == "mixmo: interrupted\n"


def test_first_step_shows_that_it_compiles(
    works: list[Work], digits: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "compile", lambda forward, **_: forward)
    monkeypatch.setattr(progress, "FIRST", 0.0)
    monkeypatch.setattr(progress, "SHORT", 0.0)
    monkeypatch.setattr(progress, "TICK", 0.01)
    timer = StepTimer(named("digits/vanilla").replace(width=1), digits, CPU, compiled=True)
    gradients = timer.step._gradients
    monkeypatch.setattr(timer.step, "_gradients", lambda draws: (time.sleep(0.1), gradients(draws))[1])
    with shown():
        timer.next_step()
        timer.next_step()
    assert [work.doing for work in works] == ["compiling the step"]
    assert capsys.readouterr().err == "compiling the step: 0:00 so far\n"


def test_fitting_epochs_to_minutes_is_shown(works: list[Work], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixmo.engine.budget.SECONDS", 0.0)
    monkeypatch.setattr(Trainer, "run", lambda trainer, until: None)
    train(named("digits/vanilla").replace(width=1), tmp_path / "run", Runtime(device="cpu", minutes=1.0))
    assert works[0].doing == "fitting the epochs to the minutes"
    assert {work.doing for work in works[1:]} == {"predicting test images"}


def test_functions_print_nothing(
    works: list[Work], runs: list[Run], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data.load(f"folder:{folder}@8")
    score_runs(runs[:1], "weights")
    score_multiplexed([runs[0].path], "last", CPU)
    estimate(named("digits/vanilla").replace(width=1), FACTS["digits"], CPU)
    train(named("digits/vanilla").replace(width=1, epochs=1), tmp_path / "run", Runtime(device="cpu", quiet=True))
    assert works == []
    assert capsys.readouterr() == ("", "")


def test_train_shows_progress_unless_quiet(
    works: list[Work], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(named("digits/vanilla").replace(width=1, epochs=1), tmp_path / "run", Runtime(device="cpu"))
    assert works[0].doing == "training"
    assert capsys.readouterr().err.splitlines()[-1].startswith("epoch 1/1  loss ")
