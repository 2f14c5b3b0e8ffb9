"""A queue of parts of tables: its order, and that it survives the loss of its machine."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mixmo.cli.app import main
from mixmo.recipes.schema import Recipe
from mixmo.reproduce.execute import epochs_logged
from mixmo.reproduce.plan import expand, needed
from mixmo.reproduce.queue import expand_queue, joined, read_queue
from mixmo.reproduce.store import Store, run_name

ROOT = Path(__file__).resolve().parents[2]
QUEUE = """
- {table: main-table, rows: [CutMix], group: CIFAR-10, scale: smoke, set: [epochs=8]}
- {table: main-table, rows: [Vanilla], group: CIFAR-10, scale: smoke}
- {table: alpha, rows: [alpha=1], scale: smoke}
"""


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    (tmp_path / "queue.yaml").write_text(QUEUE)
    return tmp_path / "queue.yaml"


def runs(queue: Path) -> list[Recipe]:
    return list(needed(expand_queue(read_queue(queue)), Store(queue.parent / "out")))


def test_runs_come_in_the_order_of_the_queue_each_with_its_settings(queue: Path) -> None:
    assert [(run.pixel, run.epochs, run.alpha) for run in runs(queue)] == [
        ("cutmix", 8, 2.0),
        ("none", 2, 2.0),
        ("none", 2, 1.0),
    ]


def test_a_scale_given_replaces_those_of_the_queue(queue: Path) -> None:
    plans = expand_queue(read_queue(queue), "minutes")
    assert {recipe.epochs for recipe in needed(plans, Store(queue.parent / "out"))} == {10}


def test_parts_of_one_table_are_printed_as_the_whole_table(queue: Path) -> None:
    """Finished runs of other parts are in it too."""
    queue.write_text(QUEUE.replace(", set: [epochs=8]", ""))
    parts = expand_queue(read_queue(queue))
    plans = joined(parts)
    assert [plan.table.name for plan in plans] == ["main-table", "alpha"]
    assert plans[0] == expand(plans[0].table, plans[0].scale, plans[0].settings, plans[0].seeds)
    assert set(plans[0].cells) > {cell for part in parts[:-1] for cell in part.cells}


def test_the_queue_of_the_repository_begins_with_the_papers_network() -> None:
    plans = expand_queue(read_queue(ROOT / "results" / "queue.yaml"))
    first = plans[0].cells[next(iter(plans[0].cells))].groups[0][0]
    assert (first.width, first.epochs, first.batch_size, first.ghost, first.repetition) == (10, 300, 256, 64, 2)
    assert expand_queue(read_queue(ROOT / "results" / "queue.yaml"), "smoke")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{table: main-tabel}", "did you mean 'main-table'"),
        ("{table: p, rows: [p=0.3]}", "unknown row of p 'p=0.3'"),
        ("{table: p, scale: our}", "did you mean 'hour'"),
        ("{tabel: p}", "is not a list of lines"),
        ("&all {table: p, rows: *all}", "line 1 has an anchor"),
        ("{table: p, set: [nothing]}", "nothing has no value"),
    ],
)
def test_a_wrong_line_is_named(queue: Path, line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    queue.write_text(f"- {line}\n")
    assert main(["reproduce", "--queue", str(queue), "--dry-run"]) == 2
    assert said in capsys.readouterr().err


def test_a_queue_takes_no_names_beside_it(queue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "p", "--queue", str(queue)]) == 2
    assert "--queue" in capsys.readouterr().err


@pytest.mark.slow
def test_a_queue_killed_with_all_its_processes_goes_on_elsewhere_from_the_run_folders_alone(queue: Path) -> None:
    """One run is done when all is killed, one is under way: the first is not touched again, the second is resumed."""
    long, short, last = runs(queue)
    command = [sys.executable, "-m", "mixmo", "reproduce", "--queue", str(queue), "--device", "cpu"]
    command += ["--save-seconds", "0"]
    two = ["--jobs", "2", "--out", str(queue.parent / "here")]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    here, there = queue.parent / "here", queue.parent / "there"
    first = subprocess.Popen([*command, *two], env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 300
        while not (here / "runs" / run_name(short) / "scores.json").exists() or not _saved(here, long):
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    logged = epochs_logged(here / "runs" / run_name(long))
    assert 0 < logged < long.epochs
    shutil.copytree(here / "runs", there / "runs")
    done = {path: path.stat().st_mtime_ns for path in (there / "runs" / run_name(short)).rglob("*")}
    assert main([*command[3:], "--quiet", "true", "--out", str(there)]) == 0
    assert {path: path.stat().st_mtime_ns for path in (there / "runs" / run_name(short)).rglob("*")} == done
    store = Store(there)
    assert all(store.find(recipe) is not None for recipe in (long, short, last))
    epochs = [line["epoch"] for line in store.find(long).read_metrics()]  # type: ignore[union-attr]
    assert epochs == list(range(1, long.epochs + 1))
    before = (here / "runs" / run_name(long) / "metrics.jsonl").read_text().splitlines()
    after = (there / "runs" / run_name(long) / "metrics.jsonl").read_text().splitlines()
    assert after[: logged - 1] == before[: logged - 1]  # what was saved was not trained again


def _saved(out: Path, recipe: Recipe) -> bool:
    return epochs_logged(out / "runs" / run_name(recipe)) > 2
