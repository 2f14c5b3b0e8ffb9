"""Analyse the logits of a run beyond its scores: calibration, risk, classes, disagreement of the members."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mixmo.metrics.diagrams import Reliability, aurc, confusion, reliability, risk_coverage
from mixmo.metrics.logits import LabelledLogits
from mixmo.metrics.ood import mutual_information
from mixmo.metrics.temperature import calibrate_halves, random_halves

POINTS = 200  # of a risk-coverage curve
CONFUSED = 15  # pairs of classes
DISAGREED = 20  # images


class Risk(NamedTuple):
    coverage: list[float]
    risk: list[float]
    aurc: float


class ClassScore(NamedTuple):
    name: str
    samples: int
    top1: float  # share of its samples that are recognised
    precision: float | None  # share of its predictions that are right; None if it is never predicted
    nll: float
    members: list[float]  # Top1 of each


class Confused(NamedTuple):
    true: str
    predicted: str
    images: int
    share: float  # of the samples of the true class


class Disagreement(NamedTuple):
    """An image of the test set, and what each member predicts for it."""

    place: int  # in the test set
    true: str
    ensemble: tuple[str, float]  # class and probability
    members: list[tuple[str, float]]


class Analysis(NamedTuple):
    before: Reliability
    after: Reliability  # each half of the samples at the temperature of the other
    temperatures: tuple[float, float]
    histogram: Reliability  # in finer bins
    risk: dict[str, Risk]  # by predictor: the ensemble, its members
    classes: list[ClassScore]
    confused: list[Confused]
    matrix: list[list[int]]  # [true][predicted]
    disagreements: list[Disagreement]


def analyse_logits(logits: LabelledLogits, names: Sequence[str]) -> Analysis:
    """Compute all of it. Classes without a name have a number."""
    logits_MNK, labels_N = logits.logits.double(), logits.labels
    mean_NK = logits_MNK.mean(0)
    classes = [names[k] if k < len(names) else f"class {k}" for k in range(mean_NK.shape[1])]
    calibrated = calibrate_halves(mean_NK, labels_N, random_halves(len(labels_N)))  # those of `evaluate`
    matrix_KK = confusion(mean_NK, labels_N)
    return Analysis(
        before=reliability(mean_NK, labels_N),
        after=reliability(calibrated.logits, labels_N),
        temperatures=calibrated.temperatures,
        histogram=reliability(mean_NK, labels_N, bins=20),
        risk={name: _risk(each_NK, labels_N) for name, each_NK in predictors(logits_MNK).items()},
        classes=_classes(logits_MNK, labels_N, matrix_KK, classes),
        confused=_confused(matrix_KK, classes),
        matrix=matrix_KK.tolist(),
        disagreements=_disagreements(logits_MNK, labels_N, classes),
    )


def predictors(logits_MNK: Tensor) -> dict[str, Tensor]:
    """Return the ensemble and its members, or the one network, by name."""
    if len(logits_MNK) == 1:
        return {"network": logits_MNK[0]}
    return {"ensemble": logits_MNK.mean(0)} | {f"member {m}": each for m, each in enumerate(logits_MNK)}


def _risk(logits_NK: Tensor, labels_N: Tensor) -> Risk:
    coverage_N, risk_N = risk_coverage(logits_NK, labels_N)
    places = torch.linspace(0, len(labels_N) - 1, min(POINTS, len(labels_N))).round().long()
    return Risk(coverage_N[places].tolist(), risk_N[places].tolist(), aurc(logits_NK, labels_N).item())


def _classes(logits_MNK: Tensor, labels_N: Tensor, matrix_KK: Tensor, classes: Sequence[str]) -> list[ClassScore]:
    count_K, right_K, predicted_K = matrix_KK.sum(1), matrix_KK.diagonal(), matrix_KK.sum(0)
    nll_N = F.cross_entropy(logits_MNK.mean(0), labels_N, reduction="none")
    nll_K = torch.bincount(labels_N, nll_N, len(classes)) / count_K.clamp(min=1)
    right_MK = torch.stack([confusion(each_NK, labels_N).diagonal() for each_NK in logits_MNK])
    members_KM = (right_MK / count_K.clamp(min=1)).T.tolist() if len(logits_MNK) > 1 else [[]] * len(classes)
    return [
        ClassScore(
            name=classes[k],
            samples=int(count_K[k]),
            top1=float(right_K[k] / count_K[k]),
            precision=float(right_K[k] / predicted_K[k]) if predicted_K[k] else None,
            nll=float(nll_K[k]),
            members=members_KM[k],
        )
        for k in range(len(classes))
        if count_K[k]
    ]


def _confused(matrix_KK: Tensor, classes: Sequence[str]) -> list[Confused]:
    wrong_KK = matrix_KK.clone().fill_diagonal_(0)
    order = wrong_KK.flatten().argsort(descending=True, stable=True)[:CONFUSED].tolist()
    pairs = [divmod(place, len(classes)) for place in order]
    samples_K = matrix_KK.sum(1)
    return [
        Confused(classes[i], classes[j], int(wrong_KK[i, j]), float(wrong_KK[i, j] / samples_K[i]))
        for i, j in pairs
        if wrong_KK[i, j]
    ]


def _disagreements(logits_MNK: Tensor, labels_N: Tensor, classes: Sequence[str]) -> list[Disagreement]:
    if len(logits_MNK) == 1:
        return []
    p_MNK, q_NK = logits_MNK.softmax(2), logits_MNK.mean(0).softmax(1)

    def first(p_K: Tensor) -> tuple[str, float]:
        return classes[int(p_K.argmax())], float(p_K.max())

    return [
        Disagreement(n, classes[int(labels_N[n])], first(q_NK[n]), [first(p_K) for p_K in p_MNK[:, n]])
        for n in mutual_information(logits_MNK).argsort(descending=True, stable=True)[:DISAGREED].tolist()
    ]
