"""Scores as pure functions of stored logits and labels, in float64 on the device of the tensors.

Shape legend: N samples, K classes, M members, P predictors (the members of one or several networks).
`evaluate(logits_MNK, labels_N)` computes them all.
"""

from mixmo.metrics.diversity import DIVERSITY, pair_mean
from mixmo.metrics.ood import DETECTORS, aupr, auroc, fpr95
from mixmo.metrics.report import Diversity, Report, Scores, evaluate, score
from mixmo.metrics.scores import METRICS
from mixmo.metrics.temperature import Calibrated, calibrate_halves, fit_temperature, random_halves

__all__ = [
    "DETECTORS",
    "DIVERSITY",
    "METRICS",
    "Calibrated",
    "Diversity",
    "Report",
    "Scores",
    "aupr",
    "auroc",
    "calibrate_halves",
    "evaluate",
    "fit_temperature",
    "fpr95",
    "pair_mean",
    "random_halves",
    "score",
]
