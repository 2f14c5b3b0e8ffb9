"""Training dynamics as columns, their averages, and CSV."""

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest

from mixmo import UserError
from mixmo.evaluation.analysis import average, columns, to_csv
from mixmo.metrics import DIVERSITY, Scores
from mixmo.recipes import Recipe
from mixmo.runs.directory import Run


@pytest.fixture
def empty(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", Recipe())


def test_columns_hold_every_metric_of_a_run(runs: list[Run]) -> None:
    table, lines = columns(runs[0]), runs[0].read_metrics()
    assert table["epoch"] == [1, 2]
    for name in ("lr", "p", "train.loss", "train.top1"):
        path = name.split(".")
        assert table[name] == [line[path[0]] if len(path) == 1 else line[path[0]][path[1]] for line in lines]
    for field in Scores._fields:
        if field not in ("temperatures", "own"):
            assert table[f"test.ensemble.{field}"] == [line["test"]["ensemble"][field] for line in lines]
            for m in (0, 1):
                assert table[f"test.members.{m}.{field}"] == [line["test"]["members"][m][field] for line in lines]
    for field in DIVERSITY:
        assert table[f"test.diversity.{field}"] == [line["test"]["diversity"][field] for line in lines]


def test_single_network_has_no_diversity(runs: list[Run]) -> None:
    assert not [name for name in columns(runs[1]) if name.startswith("test.diversity")]


def test_missing_values_are_nan(empty: Run) -> None:
    empty.write("metrics.jsonl", '{"epoch": 1, "lr": 0.5}\n{"epoch": 2, "test": {"a": 1.5}}\n{"epoch": 3, "lr"')
    table = columns(empty)
    assert table["epoch"] == [1, 2]  # the half-written line is not there
    np.testing.assert_array_equal(table["test.a"], [math.nan, 1.5])
    assert average(table)["test.a"] == 1.5


def test_average_agrees_with_numpy() -> None:
    values = np.random.default_rng(0).random((2, 25)).tolist()
    table = {"epoch": list(range(1, 26)), "one": values[0], "two": values[1]}
    for last in (1, 10, 25, 100):
        means = average(table, last)
        assert [means["one"], means["two"]] == pytest.approx([np.mean(row[-last:]) for row in values])
    every_fifth = {name: column[4::5] for name, column in table.items()}  # as `--score_every 5` leaves them
    assert average(every_fifth, 10)["one"] == pytest.approx(np.mean(values[0][19::5]))
    assert "a" not in average({"epoch": [1, 2], "a": [math.nan, math.nan]})
    with pytest.raises(UserError, match="last"):
        average(table, 0)


def test_csv_reads_back_as_the_columns(runs: list[Run]) -> None:
    tables = {run.path.name: columns(run) for run in runs}
    rows = list(csv.DictReader(io.StringIO(to_csv(tables))))
    assert [(row["run"], int(row["epoch"])) for row in rows] == [
        (n, e) for n in ("cut-mixmo", "vanilla") for e in (1, 2)
    ]
    for row in rows:
        table, epoch = tables[row["run"]], int(row["epoch"]) - 1
        for name, value in row.items():
            if name != "run":
                assert value == "" if name not in table else float(value) == table[name][epoch]


def test_empty_and_damaged_metrics_raise_an_error(empty: Run) -> None:
    with pytest.raises(UserError, match="epoch"):
        columns(empty)
    (empty.path / "metrics.jsonl").write_text("no json at all}\n" + json.dumps({"epoch": 2}) + "\n")
    with pytest.raises(UserError, match="damaged"):
        columns(empty)
    (empty.path / "metrics.jsonl").write_bytes(b"\xff\xfe}\n")
    with pytest.raises(UserError, match="damaged"):
        columns(empty)
