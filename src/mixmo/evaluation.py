"""Scores of runs: of one, or of several as one ensemble of N x M predictions."""

import warnings
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixmo import data
from mixmo.calibration import Calibration
from mixmo.errors import UserError, unknown
from mixmo.metrics import METRICS
from mixmo.metrics.report import evaluate
from mixmo.models import Ensemble, Network, multiply_adds, parameters
from mixmo.placement import on_cpu
from mixmo.predict import predict_split
from mixmo.prediction import Prediction
from mixmo.progress import Work
from mixmo.runs import WHICH, Run
from mixmo.types import Answers, Dataset
from mixmo.weights import fill

CALIBRATED = ("nll", "ece", "brier")  # scores that a temperature changes


class Unfinished(UserWarning):
    """The training of a run has not ended: what is said of it is said of weights that it will leave behind."""


def load_network(run: Run, which: str = "last") -> Network:
    """The trained network of a run, on the CPU, in eval mode; of one that has not ended, as it is by now."""
    return load_so_far(run, which)[0]


@on_cpu
def load_so_far(run: Run, which: str) -> tuple[Network, int | None]:
    """The network of a run, and of which step it is if that has not ended. A warning says so."""
    if which not in WHICH:
        raise unknown("epoch", which, WHICH)
    about, recipe, step = run.json("dataset.json"), run.recipe, None
    net = recipe.network(len(about["classes"]), about["size"][0])
    if run.finished:
        fill(net, run.path / f"{which}.safetensors")
    else:
        from mixmo.engine.checkpoint import Checkpoints  # here: the engine starts from networks that this loads

        step = Checkpoints(run.path / "checkpoints").fill(net, which, averaged=recipe.average > 0)
        when = "before any epoch was scored"
        if lines := [line for line in run.metrics() if line.get("step")]:  # not every epoch may have one
            when = f"after epoch {step * lines[-1]['epoch'] // lines[-1]['step']} of {recipe.epochs}"
        warnings.warn(
            f"the training of {run.path} has not ended; its {which} weights so far are those of step {step:,}, {when}",
            Unfinished,
            stacklevel=2,
        )
    return net.eval().to(memory_format=torch.channels_last), step  # type: ignore[call-overload]


def summary(run: Run) -> dict[str, Any]:
    """What a run's scores.json says; before that is there, the part of it that is known."""
    if run.finished:
        return run.json("scores.json")
    about, recipe = run.json("dataset.json"), run.recipe
    net = recipe.network(len(about["classes"]), about["size"][0])
    cost = {"parameters": parameters(net), "multiply_adds": multiply_adds(net, tuple(about["size"]))}
    return {**cost, "best_by": "validation" if recipe.validation else "test"}


def load_test(run: Run, root: Path | None, device: torch.device) -> Dataset:
    """The data set of a run, whose test images alone are ready; refused if its classes are others than in training."""
    dataset = data.load(run.recipe.dataset, root, device, train=False)
    for before, now in zip_longest(run.json("dataset.json")["classes"], dataset.classes):
        if before != now:
            raise UserError(
                f"{dataset.name} has changed since {run.path} was trained on it (a class: {before} -> {now}); bring "
                "back what it was, or score other images with --on"
            )
    return dataset


def run_logits(run: Run, which: str, source: str, device: torch.device, root: Path | None) -> Answers:
    """Every head's test logits and the labels: as stored, or from the weights, as also where nothing is stored yet."""
    if source == "logits" and run.finished:
        return run.logits(which)
    return run_answers(run, load_network(run, which).to(device), device, root)


def run_answers(run: Run, net: Ensemble, device: torch.device, root: Path | None) -> Answers:
    """What a network of a run answers to its test images."""
    dataset = load_test(run, root, device)
    logits_MNK, labels_N = predict_split(net, dataset, dataset.test, size=run.recipe.size)
    return Answers(logits_MNK.cpu(), labels_N.cpu())


def score_runs(
    runs: Sequence[Run],
    source: str = "logits",
    device: torch.device | None = None,
    root: Path | None = None,
    epochs: Sequence[str] = WHICH,
) -> dict[str, Any]:
    """What `mixmo eval` prints: last and best epoch, ensemble and members, diversity, cost."""
    paths = [path for run in runs for path in run.networks()]
    check_different(paths)
    runs = [Run.open(path) for path in paths]
    stored = [summary(run) for run in runs]
    scores: dict[str, Any] = {
        "runs": [str(path) for path in paths],
        "parameters": sum(s["parameters"] for s in stored),
        "multiply_adds": sum(s["multiply_adds"] for s in stored),
        "best_by": stored[0]["best_by"],
    }
    if len(runs) == 1 and "best_epoch" in stored[0]:
        scores["best_epoch"] = stored[0]["best_epoch"]
    with Work("scoring runs", len(epochs) * len(runs)) as work:
        for which in epochs:
            parts = []
            for run in runs:
                parts.append(run_logits(run, which, source, device or torch.device("cpu"), root))
                work.advance()
            scores[which] = evaluate(*stack(parts, paths)).to_dict()
    return scores


def score_answers(logits_MNK: Tensor, labels_N: Tensor, calibration: Calibration | None = None) -> dict[str, Any]:
    """Every score of an ensemble's answers, and whether its temperature, sets and threshold hold for them."""
    scores: dict[str, Any] = evaluate(logits_MNK, labels_N).to_dict()
    if calibration is None:
        return scores
    prediction, mean_NK = Prediction(logits_MNK, calibration), logits_MNK.double().mean(0)
    scores["calibrated"] = {
        "temperature": calibration.temperature,
        **{name: METRICS[name](mean_NK / calibration.temperature, labels_N).item() for name in CALIBRATED},
    }
    if calibration.conformal is not None:
        held = prediction.sets.gather(1, labels_N[:, None]).double().mean()
        size = prediction.sets.sum(1).double().mean()
        scores["sets"] = {"level": calibration.conformal.level, "held": held.item(), "size": size.item()}
    if calibration.selective is not None:
        answered_N = ~prediction.abstain
        wrong = (prediction.labels != labels_N)[answered_N].double().mean().item() if answered_N.any() else None
        given = answered_N.double().mean().item()
        scores["answered"] = {"risk": calibration.selective.risk, "share": given, "wrong": wrong}
    return scores


def check_different(paths: Sequence[Path]) -> None:
    """A run given twice would count twice, and pass for an ensemble of more than it is."""
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise UserError(f"{path} is given twice; an ensemble needs different runs")
        seen.add(path.resolve())


def stack(parts: Sequence[Answers], paths: Sequence[Path]) -> Answers:
    """The members of all models as those of one ensemble. Answers to different test sets are refused."""
    first = parts[0]
    for path, part in zip(paths, parts, strict=True):
        if not torch.equal(part.labels, first.labels) or part.logits.shape[1:] != first.logits.shape[1:]:
            raise UserError(f"{path} was tested on other data than {paths[0]}; an ensemble needs one test set")
    return Answers(torch.cat([part.logits for part in parts]), first.labels)
