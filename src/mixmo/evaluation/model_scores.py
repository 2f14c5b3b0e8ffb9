"""Scores of models on labelled images, and of their post-hoc calibration there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mixmo.calibration.posthoc import Calibration
from mixmo.evaluation.images import labelled_images
from mixmo.evaluation.models import open_models
from mixmo.evaluation.pipeline import predict_images
from mixmo.metrics import METRICS, Report, evaluate
from mixmo.metrics.report import json_ready
from mixmo.utils.device import on_cpu


class TemperatureScores(NamedTuple):
    temperature: float
    nll: float
    ece: float
    brier: float


class ConformalScores(NamedTuple):
    level: float  # target coverage
    held: float  # coverage: share of the sets that contain the true class
    size: float  # mean, in classes


class SelectiveScores(NamedTuple):
    risk: float  # maximum selective risk
    share: float  # coverage: share of the images that are predicted
    wrong: float | None  # selective risk: share of errors among these; None where there are none


class CalibrationScores(NamedTuple):
    """Scores of a post-hoc calibration; None for a part that it lacks."""

    temperature: TemperatureScores
    conformal: ConformalScores | None
    selective: SelectiveScores | None


class ModelScores(NamedTuple):
    """Scores of models on labelled images: what `score_models` returns."""

    models: list[str]
    on: str
    images: int
    report: Report
    calibration: CalibrationScores | None  # None for several networks, and for one without

    def to_dict(self) -> dict[str, Any]:
        parts = {} if self.calibration is None else self.calibration._asdict()
        fitted = {name: json_ready(part) for name, part in parts.items() if part is not None}
        return {"models": self.models, "on": self.on, "images": self.images, **self.report.to_dict(), **fitted}


def score_models(
    paths: Sequence[Path], on: str | None, which: str, device: torch.device, root: Path | None
) -> ModelScores:
    """Score the ensemble of some models on labelled images, and the calibration of one network alone."""
    models = open_models(paths, which, device)
    logits_MNK, labels_N = predict_images(models, labelled_images(models[0], on, root))
    on = models[0].trained_on if on is None else on
    fitted = models[0].about.calibration if len(models) == 1 else None
    calibrated = None if fitted is None else score_calibration(fitted, logits_MNK, labels_N)
    report = evaluate(logits_MNK, labels_N)
    return ModelScores([str(path) for path in paths], on, len(labels_N), report, calibrated)


@on_cpu
def score_calibration(calibration: Calibration, logits_MNK: Tensor, labels_N: Tensor) -> CalibrationScores:
    """Score temperature, conformal sets and selective prediction of an ensemble with these logits."""
    mean_NK, conformal, selective = logits_MNK.double().mean(0), None, None
    scaled_NK = mean_NK / calibration.temperature
    scores = [METRICS[name](scaled_NK, labels_N).item() for name in TemperatureScores._fields[1:]]
    if calibration.conformal is not None:
        # Randomised sets are the same each time.
        u_N = torch.rand(len(labels_N), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        sets_NK = calibration.conformal.sets(mean_NK, u_N)
        held = sets_NK.gather(1, labels_N[:, None]).double().mean()
        conformal = ConformalScores(calibration.conformal.level, held.item(), sets_NK.sum(1).double().mean().item())
    if calibration.selective is not None:
        predicted_N, wrong_N = ~calibration.selective.abstain(mean_NK), logits_MNK.mean(0).argmax(-1) != labels_N
        wrong = wrong_N[predicted_N].double().mean().item() if predicted_N.any() else None
        selective = SelectiveScores(calibration.selective.risk, predicted_N.double().mean().item(), wrong)
    return CalibrationScores(TemperatureScores(calibration.temperature, *scores), conformal, selective)
