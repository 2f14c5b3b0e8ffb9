"""Scores as pure functions of logits and labels, in float64: N samples, K classes, M members, P predictors.

`evaluate(logits_MNK, labels_N)` checks its arguments and computes all. The others are formulas, which do not check.
"""

from mixmo.metrics.diversity import DIVERSITY
from mixmo.metrics.ood import DETECTORS, aupr, auroc, fpr95
from mixmo.metrics.report import Diversity, Report, Scores, evaluate
from mixmo.metrics.scores import METRICS

__all__ = ["DETECTORS", "DIVERSITY", "METRICS", "Diversity", "Report", "Scores", "aupr", "auroc", "evaluate", "fpr95"]
