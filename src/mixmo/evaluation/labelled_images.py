"""Scores of models on labelled images, and whether a calibration holds there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mixmo.calibration.posthoc import Calibration
from mixmo.evaluation.run_scores import stack
from mixmo.evaluation.saved_models import check_same_classes, dataset_answers, labelled_answers, open_model
from mixmo.metrics import METRICS, Report, evaluate
from mixmo.metrics.report import json_ready
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError
from mixmo.utils.progress import track


class Tempered(NamedTuple):
    """The scores that a temperature changes, at the one that was fitted."""

    temperature: float
    nll: float
    ece: float
    brier: float


class SetScores(NamedTuple):
    """How conformal sets fare."""

    level: float  # asked for
    held: float  # share of the sets that hold the true class
    size: float  # in classes, on average


class Answered(NamedTuple):
    """How a threshold fares below which nothing is answered."""

    risk: float  # asked for
    share: float  # answered
    wrong: float | None  # share of these; None where nothing is answered


class CalibrationScores(NamedTuple):
    """Whether a calibration holds; None for what it does not have."""

    calibrated: Tempered
    sets: SetScores | None
    answered: Answered | None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, without what it does not have."""
        return {name: json_ready(part) for name, part in self._asdict().items() if part is not None}


class ModelScores(NamedTuple):
    """What `score_models` found."""

    models: list[str]
    on: str
    images: int
    report: Report
    calibration: CalibrationScores | None  # None for several models, and for one without

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, all beside each other."""
        fitted = {} if self.calibration is None else self.calibration.to_dict()
        return {"models": self.models, "on": self.on, "images": self.images, **self.report.to_dict(), **fitted}


def score_models(
    paths: Sequence[Path], on: str | None, which: str, device: torch.device, root: Path | None
) -> ModelScores:
    """Every score of the ensemble of these models, and of one alone whether its temperature, sets and threshold hold.

    On a folder of class folders, a CSV of path,label or the test images of a data set; without `on`, on those of what
    the first model was trained on.
    """
    models = [open_model(path, which, device) for path in paths]
    check_same_classes(models)
    answer = dataset_answers if on is None else labelled_answers  # a folder may happen to have the data set's name
    on = models[0].trained_on if on is None else on
    logits_MNK, labels_N = stack([answer(model, on, root) for model in track(models, "models")], paths)
    if len(labels_N) < 2:
        raise UserError(f"{on} has one image, and scores need two at least; give more")
    report, fitted = evaluate(logits_MNK, labels_N), models[0].calibration if len(models) == 1 else None
    held = None if fitted is None else score_calibration(fitted, logits_MNK, labels_N)
    return ModelScores([str(path) for path in paths], on, len(labels_N), report, held)


@on_cpu
def score_calibration(calibration: Calibration, logits_MNK: Tensor, labels_N: Tensor) -> CalibrationScores:
    """Whether temperature, sets and threshold hold for an ensemble's answers."""
    mean_NK, sets, answered = logits_MNK.double().mean(0), None, None
    scores = [METRICS[name](mean_NK / calibration.temperature, labels_N).item() for name in Tempered._fields[1:]]
    if calibration.conformal is not None:
        u_N = torch.rand(len(labels_N), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        sets_NK = calibration.conformal.sets(mean_NK, u_N)  # randomised ones are the same each time
        held = sets_NK.gather(1, labels_N[:, None]).double().mean()
        sets = SetScores(calibration.conformal.level, held.item(), sets_NK.sum(1).double().mean().item())
    if calibration.selective is not None:
        answered_N, wrong_N = ~calibration.selective.abstain(mean_NK), logits_MNK.mean(0).argmax(-1) != labels_N
        wrong = wrong_N[answered_N].double().mean().item() if answered_N.any() else None
        answered = Answered(calibration.selective.risk, answered_N.double().mean().item(), wrong)
    return CalibrationScores(Tempered(calibration.temperature, *scores), sets, answered)
