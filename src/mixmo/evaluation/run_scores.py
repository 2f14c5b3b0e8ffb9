"""Scores of runs: of one, or of several as one ensemble of N x M predictions."""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mixmo import data
from mixmo.data.types import Dataset
from mixmo.inference.predict import predict_split
from mixmo.metrics.logits import LabelledLogits
from mixmo.metrics.report import Report, evaluate
from mixmo.models import Ensemble, multiply_adds, parameters
from mixmo.runs.directory import WHICH, Run
from mixmo.runs.network import load_network
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work


class Summary(NamedTuple):
    """What is known of a run, or of several as one ensemble, without a look at the answers."""

    parameters: int
    multiply_adds: int
    best_by: str  # "test" or "validation", whose images chose the best epoch; "test" if it was so for one of several
    best_epoch: int | None  # None before the training has ended, and for several runs


def summary(run: Run) -> Summary:
    """From a run's scores.json; before that is there, from its recipe."""
    if run.finished:
        stored = run.json("scores.json")
        return Summary(*(stored[field] for field in Summary._fields))
    about, recipe = run.json("dataset.json"), run.recipe
    net = recipe.network(len(about["classes"]), about["size"][0])
    best_by = "validation" if recipe.validation else "test"
    return Summary(parameters(net), multiply_adds(net, tuple(about["size"])), best_by, None)


def load_test(run: Run, root: Path | None, device: torch.device) -> Dataset:
    """The data set of a run, whose test images alone are ready; refused if its classes are others than in training."""
    dataset = data.load(run.recipe.dataset, root, device, train=False)
    record = run.json("dataset.json")
    for before, now in zip_longest(record["classes"], dataset.classes):
        if before != now:
            raise UserError(
                f"{dataset.name} has changed since {run.path} was trained on it (a class: {before} -> {now}); bring "
                "back what it was, or score other images with --on"
            )
    return dataset._replace(mean=tuple(record["mean"]), std=tuple(record["std"]))  # of the start network, perhaps


def run_logits(run: Run, which: str, source: str, device: torch.device, root: Path | None) -> LabelledLogits:
    """Every head's test logits and the labels: as stored, or from the weights, as also where nothing is stored yet."""
    if source == "logits" and run.finished:
        return run.logits(which)
    return run_answers(run, load_network(run, which).to(device), device, root)


def run_answers(run: Run, net: Ensemble, device: torch.device, root: Path | None) -> LabelledLogits:
    """What a network of a run answers to its test images."""
    dataset = load_test(run, root, device)
    logits_MNK, labels_N = predict_split(net, dataset, dataset.test, size=run.recipe.size)
    return LabelledLogits(logits_MNK.cpu(), labels_N.cpu())


class RunScores(NamedTuple):
    """What `score_runs` found."""

    runs: list[str]
    summary: Summary
    reports: dict[str, Report]  # of the last and the best epoch

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, all beside each other; without a best epoch where there is none."""
        known = {name: value for name, value in self.summary._asdict().items() if value is not None}
        return {"runs": self.runs, **known, **{which: report.to_dict() for which, report in self.reports.items()}}


def score_runs(
    runs: Sequence[Run],
    source: str = "logits",
    device: torch.device | None = None,
    root: Path | None = None,
    epochs: Sequence[str] = WHICH,
) -> RunScores:
    """What `mixmo eval` prints: last and best epoch, ensemble and members, diversity, cost."""
    paths = [path for run in runs for path in run.networks()]
    check_different(paths)
    runs = [Run.open(path) for path in paths]
    stored, reports = [summary(run) for run in runs], {}
    with Work("scoring runs", len(epochs) * len(runs)) as work:
        for which in epochs:
            parts = []
            for run in runs:
                parts.append(run_logits(run, which, source, device or torch.device("cpu"), root))
                work.advance()
            reports[which] = evaluate(*stack(parts, paths))
    whole = Summary(
        parameters=sum(each.parameters for each in stored),
        multiply_adds=sum(each.multiply_adds for each in stored),
        best_by="test" if any(each.best_by == "test" for each in stored) else "validation",
        best_epoch=stored[0].best_epoch if len(runs) == 1 else None,
    )
    return RunScores([str(path) for path in paths], whole, reports)


def check_different(paths: Sequence[Path]) -> None:
    """A run given twice would count twice, and pass for an ensemble of more than it is."""
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise UserError(f"{path} is given twice; an ensemble needs different runs")
        seen.add(path.resolve())


def stack(parts: Sequence[LabelledLogits], paths: Sequence[Path]) -> LabelledLogits:
    """The members of all models as those of one ensemble. LabelledLogits to different test sets are refused."""
    first = parts[0]
    for path, part in zip(paths, parts, strict=True):
        if not torch.equal(part.labels, first.labels) or part.logits.shape[1:] != first.logits.shape[1:]:
            raise UserError(f"{path} was tested on other data than {paths[0]}; an ensemble needs one test set")
    return LabelledLogits(torch.cat([part.logits for part in parts]), first.labels)
