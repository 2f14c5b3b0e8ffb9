"""Compare runs: scores side by side, differences of their recipes, mean and standard deviation over seeds."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mixmo.evaluation.run_scores import score_runs
from mixmo.metrics.report import json_ready
from mixmo.runs.contents import SCORES
from mixmo.runs.directory import Run


class ComparedRun(NamedTuple):
    run: str
    finished: bool
    epoch: int | None  # last scored epoch of a run that has not ended, whose scores these are; else None
    recipe: dict[str, Any]
    scores: dict[str, float | None]  # of the ensemble of its members; empty before an epoch was scored


class Seeds(NamedTuple):
    """Finished runs whose recipes differ in the seed only."""

    runs: list[str]
    mean: dict[str, float]
    std: dict[str, float]  # of a sample: with n - 1


class Comparison(NamedTuple):
    which: str
    runs: list[ComparedRun]
    recipes: dict[str, list[Any]]  # the fields that differ, with the value of each run
    seeds: list[Seeds]

    def to_dict(self) -> dict[str, Any]:
        rows = [{name: value for name, value in run._asdict().items() if name != "recipe"} for run in self.runs]
        return dict(json_ready(self._asdict() | {"runs": rows}))


def compare_runs(paths: Sequence[Path], which: str = "last", sort: str | None = None) -> Comparison:
    """Compare runs by their stored scores, without their weights or logits."""
    runs = [_run(Run.open(path), which) for path in paths]
    if sort is not None:
        sign = -1 if sort in ("top1", "top5") else 1
        runs.sort(key=lambda run: (run.scores.get(sort) is None, sign * (run.scores.get(sort) or 0)))
    return compare(runs, which)


def compare(runs: list[ComparedRun], which: str) -> Comparison:
    """Compare what was read of runs. A recipe of another version may lack fields: there their value is None."""
    names = dict.fromkeys(field for run in runs for field in run.recipe)
    values = {field: [run.recipe.get(field) for run in runs] for field in names}
    differing = {field: each for field, each in values.items() if any(value != each[0] for value in each)}
    return Comparison(which, runs, differing, _seeds(runs))


def _run(run: Run, which: str) -> ComparedRun:
    recipe, finished, epoch = run.recipe, run.is_finished(), None
    scores: dict[str, Any] = {}
    if finished and recipe.networks > 1:
        scores = score_runs([run], epochs=[which]).reports[which].ensemble._asdict()
    elif finished:
        scores = run.read_scores()[which]["ensemble"]
    elif scored := [line for line in run.read_metrics() if "test" in line]:
        epoch, scores = scored[-1]["epoch"], scored[-1]["test"]["ensemble"]
    found = {name: scores[name] for name in SCORES if name in scores}
    return ComparedRun(str(run.path), finished, epoch, recipe.to_dict(), found)


def _seeds(runs: Sequence[ComparedRun]) -> list[Seeds]:
    groups: dict[str, list[ComparedRun]] = {}
    for run in runs:
        if run.finished:
            groups.setdefault(repr(run.recipe | {"seed": None}), []).append(run)
    return [_statistics(group) for group in groups.values() if len({run.recipe.get("seed") for run in group}) > 1]


def _statistics(group: Sequence[ComparedRun]) -> Seeds:
    columns = {name: [run.scores[name] for run in group] for name in group[0].scores}
    whole = {name: [v for v in column if v is not None] for name, column in columns.items() if None not in column}
    mean, std = ({name: of(whole[name]) for name in whole} for of in (statistics.fmean, statistics.stdev))
    return Seeds([run.run for run in group], mean, std)
