"""Scores as pure functions of logits and labels, in float64 on the device of the tensors.

`evaluate(logits_MNK, labels_N)` checks its arguments and computes them all. The other functions, in `METRICS`,
`DIVERSITY` and `DETECTORS` too, are the formulas: they do not check theirs.
Shape legend: N samples, K classes, M members, P predictors (the members of one or several networks).
"""

from mixmo.metrics.diversity import DIVERSITY, pair_mean
from mixmo.metrics.ood import DETECTORS, aupr, auroc, fpr95
from mixmo.metrics.report import Diversity, Report, Scores, evaluate
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
]
