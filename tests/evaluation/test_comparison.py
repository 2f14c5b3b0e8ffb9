"""mixmo compare: scores side by side, differences of recipes, statistics over seeds."""

import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from mixmo.cli.app import main
from mixmo.cli.tables import print_comparison
from mixmo.engine import Runtime, train
from mixmo.evaluation.comparison import ComparedRun, Comparison, compare_runs
from mixmo.evaluation.run_scores import score_runs
from mixmo.runs.directory import Run

QUIET = Runtime(device="cpu", quiet=True)


@pytest.fixture(scope="module")
def four(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds, another recipe, and a run that has not ended."""
    root = tmp_path_factory.mktemp("four")
    second = train(runs[0].recipe.replace(seed=1), root / "second", QUIET)
    stopped = train(runs[0].recipe.replace(seed=2), root / "stopped", QUIET, until=15)
    return [runs[0].path, runs[1].path, second.path, stopped.path]


def test_scores_are_the_stored_ones(four: list[Path]) -> None:
    for which in ("last", "best"):
        found = compare_runs(four, which)
        assert [run.run for run in found.runs] == list(map(str, four))
        for run in found.runs[:3]:
            stored = Run.open(run.run).read_scores()[which]["ensemble"]
            assert run.scores == {name: stored[name] for name in run.scores}
            assert run.finished


def test_an_unfinished_run_has_the_scores_of_its_last_scored_epoch(four: list[Path]) -> None:
    run, (line, *_) = compare_runs(four).runs[3], Run.open(four[3]).read_metrics()
    assert (run.finished, run.epoch) == (False, 1)
    assert run.scores["top1"] == line["test"]["ensemble"]["top1"]


def test_only_recipe_fields_that_differ_are_listed(four: list[Path]) -> None:
    found = compare_runs(four).recipes
    assert found["seed"] == [0, 0, 1, 2]
    assert found["members"] == [2, 1, 2, 2]
    assert "width" not in found
    assert compare_runs(four[:1]).recipes == {}


def test_seeds_of_finished_runs_are_averaged(four: list[Path]) -> None:
    (group,) = compare_runs(four).seeds
    assert group.runs == [str(four[0]), str(four[2])]
    values = [Run.open(path).read_scores()["last"]["ensemble"]["nllc"] for path in group.runs]
    assert group.mean["nllc"] == pytest.approx(sum(values) / 2)
    assert group.std["nllc"] == pytest.approx(statistics.stdev(values))
    assert compare_runs([four[0], four[0]]).seeds == []  # one seed


@pytest.mark.parametrize(("score", "best"), [("top1", max), ("nll", min)])
def test_sorting_puts_the_best_run_first(four: list[Path], score: str, best: Callable[..., float]) -> None:
    values = [run.scores[score] for run in compare_runs(four, sort=score).runs]
    assert values == sorted(values, reverse=best is max)


def test_a_run_of_several_networks_is_scored_as_an_ensemble(runs: list[Run], tmp_path: Path) -> None:
    several = Run.create(tmp_path / "two", runs[1].recipe.replace(networks=2))
    for name in ("0", "1"):
        shutil.copytree(runs[1].path, several.path / name)
    (found,) = compare_runs([several.path]).runs
    assert found.scores["nll"] == score_runs([several]).reports["last"].ensemble.nll


def test_the_tables_agree_with_the_json(four: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *map(str, four), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["which", "runs", "recipes", "seeds"]
    assert list(found["runs"][0]) == ["run", "finished", "epoch", "scores"]
    assert main(["compare", *map(str, four)]) == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines()]
    for letter, run in zip("ABC", found["runs"], strict=False):
        assert [letter, run["run"]] in rows
        assert [letter, f"{100 * run['scores']['top1']:.2f}"] in [row[:2] for row in rows]
    assert f"D  {four[3]} (not ended: scores of epoch 1 of 2)" in text.splitlines()
    assert ["mean", "of", "A", "C", f"{100 * found['seeds'][0]['mean']['top1']:.2f}"] in [row[:5] for row in rows]
    assert ["seed", "0", "0", "1", "2"] in rows


def test_tables_of_results_fit_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Also those of a dozen runs, which have stored scores only."""
    results = sorted(Path(__file__).parents[2].glob("results/cifar100-wrn28-4/*/"))
    assert len(results) > 10
    assert main(["compare", *map(str, results), "--sort", "top1"]) == 0
    tables = capsys.readouterr().out.partition("scores (last epoch)")[2]
    assert max(map(len, tables.splitlines())) <= 80
    assert "mean of" in tables


def test_top5_of_five_classes_is_a_dash_and_a_perfect_one_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"top1": 0.5, "top5": 0.9, "nll": 1.0, "nllc": 1.0, "ece": 0.1, "brier": 0.5}
    runs = [
        ComparedRun(f"{name}-{top5}", True, None, {"dataset": name}, scores | {"top5": top5})
        for name, top5 in (("ten", 0.9), ("five", 1.0), ("ten", 1.0))
    ]
    print_comparison(Comparison("last", runs, {}, []))
    rows = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert ["A", "50.00", "90.00"] in rows
    assert ["B", "50.00", "-"] in rows
    assert ["C", "50.00", "100.00"] in rows


def test_a_folder_that_is_no_run_raises_an_error(tmp_path: Path, said: Callable[..., str]) -> None:
    assert "run directory" in said("compare", tmp_path)
