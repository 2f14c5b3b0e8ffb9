"""Analyse runs: filters, members, diversity and training dynamics, as `mixmo analyse` prints them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mixmo.evaluation.analysis.dynamics import average, columns, scored
from mixmo.evaluation.analysis.filters import Activity, activity, core_norms, encoder_norms, encoders, separation
from mixmo.evaluation.models import open_models
from mixmo.evaluation.pipeline import own_logits, stack
from mixmo.metrics.diversity import DIVERSITY
from mixmo.metrics.logits import LabelledLogits
from mixmo.metrics.report import json_ready
from mixmo.metrics.scores import top1
from mixmo.models import Ensemble, Network
from mixmo.runs.directory import Run
from mixmo.utils.progress import track

THRESHOLDS = (0.2, 0.3, 0.4, 0.5)  # of the paper's table
LAST = 10  # epochs the paper averages over


@dataclass(frozen=True)
class RunAnalysis:
    run: str
    encoders: list[list[float]]  # l1 norms, (encoders, channels)
    separation: float | None  # of the members' channels; None where there is one encoder only
    active: list[Activity]  # one per threshold
    top1: float  # of the ensemble
    members_top1: list[float]
    epochs: int  # averaged over below
    means: dict[str, float]  # every column of the training dynamics


@dataclass(frozen=True)
class Analysis:
    """Some runs, and all their N x M predictors beside each other."""

    which: str  # weights and logits of the last or of the best epoch
    runs: list[RunAnalysis]
    predictors: list[str]  # RUN:MEMBER, in the order of the matrices
    diversity: dict[str, list[list[float]]]  # measure -> matrix over pairs of predictors

    def to_dict(self) -> dict[str, Any]:
        return {name: json_ready(value) for name, value in asdict(self).items()}


def analyse(
    runs: Sequence[Run],
    which: str = "last",
    thresholds: Sequence[float] = THRESHOLDS,
    last: int = LAST,
    device: torch.device | None = None,
    root: Path | None = None,
) -> Analysis:
    """Measure filters, accuracy of the members, pairwise diversity and means over the last epochs.

    A run that has not ended is tested on the `device` with its data set from the folder `root`.
    """
    runs = [network for run in runs for network in run.open_networks()]
    models = open_models([run.path for run in runs], which, device or torch.device("cpu"))
    parts = [own_logits([model], which, "logits", root) for model in track(models, "runs")]
    logits_PNK, labels_N = stack(parts, [run.path for run in runs])
    return Analysis(
        which=which,
        runs=[
            _analyse(run, model.net.cpu(), part, thresholds, last)
            for run, model, part in track(list(zip(runs, models, parts, strict=True)), "analysing runs")
        ],
        predictors=[f"{run.path}:{m}" for run, part in zip(runs, parts, strict=True) for m in range(len(part.logits))],
        diversity={
            name: DIVERSITY[name](logits_PNK, labels_N).tolist()
            for name in track(list(DIVERSITY), "comparing all predictors")
        },
    )


def _analyse(run: Run, net: Ensemble, part: LabelledLogits, thresholds: Sequence[float], last: int) -> RunAnalysis:
    logits_MNK, labels_N = part
    norms = core_norms(net)
    table = columns(run)
    return RunAnalysis(
        run=str(run.path),
        encoders=encoder_norms(net).tolist(),
        separation=channel_separation(net),
        active=[activity(norms, threshold) for threshold in thresholds],
        top1=top1(logits_MNK.mean(0), labels_N).item(),
        members_top1=[top1(logits_NK, labels_N).item() for logits_NK in logits_MNK],
        epochs=scored(table, last),
        means=average(table, last),
    )


def channel_separation(net: Ensemble) -> float | None:
    """Return `separation` of a network's encoders: None with one for all, 1 where the channels are concatenated."""
    if len(encoders(net)) < 2:
        return None
    return 1.0 if isinstance(net, Network) and net.concat else separation(encoder_norms(net))
