"""Scores of runs: of one, or of several as one ensemble of N x M members."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mixmo.evaluation.models import open_models
from mixmo.evaluation.pipeline import check_different, own_logits, stack
from mixmo.metrics.logits import LabelledLogits
from mixmo.metrics.report import Diversity, Report, Scores, evaluate
from mixmo.models import multiply_adds, parameters
from mixmo.runs.checkpoint import Checkpoints
from mixmo.runs.directory import WHICH, Run
from mixmo.storage.weights import is_stored
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work


class Summary(NamedTuple):
    """Cost and best epoch of a run, or of several as one ensemble."""

    parameters: int
    multiply_adds: int
    best_by: str  # "test" or "validation": the images that chose the best epoch; "test" if so for one of several
    best_epoch: int | None  # None for a run that has not ended, and for several runs


def summary(run: Run) -> Summary:
    """Read the summary of a finished run from scores.json, or derive that of another from its recipe."""
    if run.is_finished():
        stored = run.read_scores()
        return Summary(*(stored[field] for field in Summary._fields))
    about, recipe = run.read_dataset(), run.recipe
    net = recipe.network(len(about["classes"]), tuple(about["size"]))
    best_by = "validation" if recipe.validation else "test"
    return Summary(parameters(net), multiply_adds(net, tuple(about["size"])), best_by, None)


class RunScores(NamedTuple):
    """Scores of a run, or of several as one ensemble: what `mixmo eval` prints."""

    runs: list[str]
    summary: Summary
    reports: dict[str, Report]  # of the last and the best epoch
    stored: bool = False  # copied from scores.json, as there are no logits to compute them from

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and numbers, ready for JSON; without a best epoch where there is none."""
        known = {name: value for name, value in self.summary._asdict().items() if value is not None}
        stored = {"stored": True} if self.stored else {}
        reports = {which: report.to_dict() for which, report in self.reports.items()}
        return {"runs": self.runs, **known, **stored, **reports}


def score_runs(
    runs: Sequence[Run],
    source: str = "logits",
    device: torch.device | None = None,
    root: Path | None = None,
    epochs: Sequence[str] | None = None,
) -> RunScores:
    """Score runs, several as one ensemble: members, diversity and cost, of the last and the best epoch.

    Args:
        runs: Run directories, finished or not. One alone may lack its logits: its stored scores are returned.
        source: "logits" scores the stored test logits of finished runs; "weights" predicts the test set again.
        device: Where to predict; the CPU by default.
        root: Folder of the data sets, to predict.
        epochs: "last", "best" or both; by default both, without "best" while no epoch has been scored.

    Returns:
        A report for each epoch, and the cost.

    Raises:
        UserError: A run is given twice, lacks what is needed, or was tested on other data than the first.
    """
    paths = [path for run in runs for path in run.network_paths()]
    check_different(paths)
    runs = [Run.open(path) for path in paths]
    epochs = epochs or _epochs(runs)
    if source == "logits" and (lacking := [run for run in runs if run.is_finished() and not _has_logits(run, epochs)]):
        if len(runs) > 1:
            raise UserError(f"{lacking[0].path} has no logits, which an ensemble needs; try mixmo compare instead")
        return stored_scores(runs[0], epochs)._replace(stored=True)
    summaries, reports = [summary(run) for run in runs], {}
    with Work("scoring runs", len(epochs) * len(runs)) as work:
        for which in epochs:
            parts = []
            for run in runs:
                parts.append(_run_logits(run, which, source, device or torch.device("cpu"), root))
                work.advance()
            reports[which] = evaluate(*stack(parts, paths))
    whole = Summary(
        parameters=sum(each.parameters for each in summaries),
        multiply_adds=sum(each.multiply_adds for each in summaries),
        best_by="test" if any(each.best_by == "test" for each in summaries) else "validation",
        best_epoch=summaries[0].best_epoch if len(runs) == 1 else None,
    )
    return RunScores([str(path) for path in paths], whole, reports)


def stored_scores(run: Run, epochs: Sequence[str] = WHICH) -> RunScores:
    """Read the scores of a finished run of one network from scores.json, as its training computed them."""
    stored = run.read_scores()
    return RunScores([str(run.path)], summary(run), {which: _report(stored[which]) for which in epochs})


def _epochs(runs: Sequence[Run]) -> Sequence[str]:
    """The epochs that every run has weights of: no best one before an epoch was scored."""
    states = [None if run.is_finished() else Checkpoints(run.path / "checkpoints").state() for run in runs]
    return WHICH if all(state is None or state.best_step is not None for state in states) else ("last",)


def _has_logits(run: Run, epochs: Sequence[str]) -> bool:
    return all(is_stored(run.path / f"logits-{which}.safetensors") for which in epochs)


def _run_logits(run: Run, which: str, source: str, device: torch.device, root: Path | None) -> LabelledLogits:
    if source == "logits" and run.is_finished():
        return run.read_logits(which)  # which needs no weights
    return own_logits(open_models([run.path], which, device), which, source="weights", root=root)


def _report(stored: Mapping[str, Any]) -> Report:
    """What `Report.to_dict` gave."""

    def scores(kind: Any, stored: Mapping[str, Any]) -> Any:
        values = {name: math.nan if value is None else value for name, value in stored.items()}
        return kind(*(values.pop(name, math.nan) for name in kind._fields[:-1]), values)  # user-defined ones are left

    members = tuple(scores(Scores, member) for member in stored["members"])
    diversity = stored.get("diversity")
    return Report(scores(Scores, stored["ensemble"]), members, diversity and scores(Diversity, diversity))
