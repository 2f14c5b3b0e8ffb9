"""Loggers repeat what metrics.jsonl says, through interruptions too."""

import csv
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mixmo.engine.loggers import Loggers, numbers
from mixmo.runs.directory import Run
from mixmo.utils.errors import UserError

HYPERPARAMETERS = {"width": 4, "decay": [0.5, 0.75], "mask": "cut"}


def lines(count: int, offset: float = 0.0) -> list[dict[str, Any]]:
    return [
        {
            "epoch": epoch,
            "step": 10 * epoch,
            "train": {"loss": 1.0 / epoch + offset, "top1": 0.5},
            "test": {"ensemble": {"top1": 0.1 * epoch, "temperatures": [1.0, 2.0]}, "diversity": None},
        }
        for epoch in range(1, count + 1)
    ]


class Recorder:
    """Any object with Lightning's interface."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.calls.append((step, metrics))

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self.calls.append(params)

    def finalize(self, status: str) -> None:
        self.calls.append(status)


def in_csv(folder: Path) -> list[dict[str, str]]:
    with (folder / "logs" / "csv" / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_holds_every_number(tmp_path: Path) -> None:
    loggers = Loggers(["csv"], tmp_path)
    loggers.start(HYPERPARAMETERS)
    for line in lines(3):
        loggers.log(line)
        assert len(in_csv(tmp_path)) == line["epoch"]  # on the disk at once
    loggers.finish()
    rows = in_csv(tmp_path)
    assert [int(row["step"]) for row in rows] == [10, 20, 30]
    assert [float(row["train/loss"]) for row in rows] == [1.0, 1 / 2, 1 / 3]
    assert {row["test/ensemble/temperatures/1"] for row in rows} == {"2.0"}
    assert "test/diversity" not in rows[0]


def test_a_resumed_run_logs_each_epoch_once(tmp_path: Path) -> None:
    """Epochs after the last checkpoint come again; the files then hold the second version alone."""
    other = Recorder()
    first = Loggers(["csv", "tensorboard", other], tmp_path)
    first.start(HYPERPARAMETERS)
    for line in lines(3, offset=0.25):
        first.log(line)
    first.finish("interrupted")
    kept = lines(2, offset=0.25)  # metrics.jsonl up to the checkpoint
    second = Loggers(["csv", "tensorboard", other], tmp_path)
    second.start(HYPERPARAMETERS, kept)
    for line in lines(4)[2:]:
        second.log(line)
    second.finish()
    expected = {10: 1.25, 20: 0.75, 30: 1 / 3, 40: 0.25}
    assert {int(row["step"]): float(row["train/loss"]) for row in in_csv(tmp_path)} == pytest.approx(expected)
    assert in_tensorboard(tmp_path, "train/loss") == pytest.approx(expected)
    steps = [call[0] for call in other.calls if isinstance(call, tuple)]
    assert steps == [10, 20, 30, 30, 40]
    assert [call for call in other.calls if not isinstance(call, tuple)] == [HYPERPARAMETERS, "interrupted", "success"]


def in_tensorboard(folder: Path, name: str) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "logs" / "tensorboard"))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(name)}


def test_a_run_s_own_metrics(runs: list[Run], tmp_path: Path) -> None:
    """What training writes can be logged as it is."""
    loggers = Loggers(["csv"], tmp_path)
    loggers.start(HYPERPARAMETERS)
    for line in runs[0].read_metrics():
        loggers.log(line)
    rows = in_csv(tmp_path)
    for row, line in zip(rows, runs[0].read_metrics(), strict=True):
        assert float(row["test/ensemble/top1"]) == line["test"]["ensemble"]["top1"]
        assert float(row["test/members/1/nll"]) == line["test"]["members"][1]["nll"]
        assert all(not isinstance(value, str) for value in numbers(line).values())


def test_one_that_fails_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    class Gone(Recorder):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.calls.append(step)
            raise ConnectionError("no route to the server\nand more")

    gone, other = Gone(), Recorder()
    loggers = Loggers([gone, "csv", other], tmp_path)
    loggers.start(HYPERPARAMETERS)
    with pytest.warns(UserWarning, match=r"^Gone failed \(no route to the server\)") as said:
        loggers.log(lines(1)[0])
    assert Path(said[0].filename).name == "loggers.py"  # one of ours: the command line says it as a sentence
    loggers.log(lines(2)[1])
    loggers.finish()
    assert gone.calls == [HYPERPARAMETERS, 10]
    assert [call[0] for call in other.calls[1:-1]] == [10, 20]
    assert len(in_csv(tmp_path)) == 2


def test_a_class_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Placed(Recorder):
        def __init__(self, save_dir: str) -> None:
            super().__init__()
            self.save_dir = save_dir

    module = ModuleType("their_loggers")
    module.Placed = Placed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_loggers", module)
    loggers = Loggers(["their_loggers.Placed"], tmp_path)
    (logger,) = loggers.others
    assert isinstance(logger, Placed)
    assert logger.save_dir == str(tmp_path / "logs")
    loggers.start(HYPERPARAMETERS)
    assert logger.calls == [HYPERPARAMETERS]


@pytest.mark.parametrize(
    ("logger", "sentence"),
    [
        ("tensorbord", "unknown logger 'tensorbord'; did you mean 'tensorboard'"),
        ("nowhere.Logger", "logger 'nowhere.Logger' cannot be made"),
    ],
)
def test_bad_loggers_raise_an_error(logger: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        Loggers([logger], tmp_path)
