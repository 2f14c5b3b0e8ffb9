"""The list of runs: which there are, in which state, and that only what changed is read again."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mixmo.cli.app import main
from mixmo.evaluation.comparison import compare_runs
from mixmo.reports import listing
from mixmo.reports.listing import Listing, find_runs
from mixmo.runs.lock import claim

Copy = Callable[..., Path]


@pytest.fixture
def folder(copy: Copy, tmp_path: Path) -> Path:
    """Four runs: finished, training, stopped and damaged, and folders that are none."""
    copy("runs/deep/finished")
    copy("runs/training", without=("scores.json",))
    stopped = copy("runs/stopped", 1, without=("scores.json",))
    (copy("runs/zdamaged") / "scores.json").write_text("{")
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "runs" / ".hidden").symlink_to(stopped)
    (tmp_path / "runs" / "deep" / "loop").symlink_to(tmp_path / "runs")
    return tmp_path / "runs"


def states(folder: Path) -> dict[str, str]:
    return {row.run: row.state for row in Listing(folder).read()}


def test_states_are_found_without_touching_the_lock(folder: Path) -> None:
    expected = {"deep/finished": "finished", "stopped": "stopped", "training": "stopped", "zdamaged": "damaged"}
    assert states(folder) == expected
    with claim(folder / "training"):
        assert states(folder) == expected | {"training": "training"}
    assert states(folder) == expected


def test_a_lock_that_a_killed_process_left_counts_for_a_minute_only(folder: Path) -> None:
    lock = folder / "stopped" / ".lock"
    lock.touch()
    old = time.time() - 3600
    for file in (lock, folder / "stopped" / "metrics.jsonl", folder / "stopped" / "checkpoints"):
        os.utime(file, (old, old))
    assert states(folder)["stopped"] == "stopped"


def test_scores_are_those_of_compare(folder: Path) -> None:
    path = folder / "deep" / "finished"
    (row,) = [row for row in Listing(folder).read() if row.run == "deep/finished"]
    expected = compare_runs([path]).runs[0].scores
    assert (row.top1, row.nll, row.nllc, row.ece) == tuple(expected[name] for name in ("top1", "nll", "nllc", "ece"))
    assert (row.epoch, row.epochs, row.members, row.method) == (2, 2, 2, "digits/cut-mixmo, width = 1")
    assert row.curves["epoch"] == [1, 2]


def test_a_recipe_of_another_version_is_no_damage(copy: Copy, tmp_path: Path) -> None:
    with (copy() / "recipe.yaml").open("a") as file:
        file.write("quantum: true\n")
    (row,) = Listing(tmp_path).read()
    assert (row.state, row.method, row.error) == ("finished", "digits", None)


def test_networks_of_an_ensemble_are_listed_each(copy: Copy, tmp_path: Path) -> None:
    for name in ("de", "de/0", "de/1"):
        copy(name)
    assert [path.name for path in find_runs(tmp_path)] == ["0", "1"]


def test_only_new_lines_are_parsed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Listing(folder)
    runs.read()
    parsed: list[str | bytes] = []
    monkeypatch.setattr(listing, "parse_json", lambda text: (parsed.append(text), json.loads(text))[1])
    runs.read()
    assert parsed == []
    log = folder / "training" / "metrics.jsonl"
    last = json.loads(log.read_text().splitlines()[-1])
    with log.open("a") as file:
        file.write(json.dumps({**last, "epoch": 3}) + "\n" + '{"epoch": 4')
    (row,) = [row for row in runs.read() if row.run == "training"]
    assert row.epoch == 3
    assert len(parsed) == 1
    log.write_text(json.dumps({**last, "epoch": 1}) + "\n")  # trained anew
    (row,) = [row for row in runs.read() if row.run == "training"]
    assert row.epoch == 1
    assert row.curves["epoch"] == [1]


def test_time_left_follows_from_the_pace(folder: Path) -> None:
    log = folder / "training" / "metrics.jsonl"
    line = json.loads(log.read_text().splitlines()[0]) | {"epoch": 1, "seconds": 100.0, "evaluation_seconds": 20.0}
    log.write_text(json.dumps(line) + "\n")
    with claim(folder / "training"):
        (row,) = [row for row in Listing(folder).read() if row.run == "training"]
    assert row.left == pytest.approx(120, abs=5)  # one more epoch


def test_command_sorts_and_prints_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(folder), "--sort", "top1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    values = [row["top1"] for row in rows if row["top1"] is not None]
    assert values == sorted(values, reverse=True)
    assert main(["runs", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.index("deep/finished") < printed.index("stopped") < printed.index("zdamaged")
    assert "scores.json cannot be read" in printed


def test_no_folder_and_no_runs_are_told(
    said: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert "is not a folder" in said("runs", tmp_path / "none")
    assert main(["runs", str(tmp_path)]) == 0
    assert "no runs below" in capsys.readouterr().out


def test_scores_derived_from_runs_are_no_run(folder: Path) -> None:
    before = set(states(folder))
    kept = folder / "derived" / "two-networks" / "scores.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    assert set(states(folder)) == before
