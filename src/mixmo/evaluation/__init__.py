"""Scores of runs, saved networks and labelled images; corruptions, OOD detection, multiplexed inference, analysis."""

from mixmo.evaluation.labelled_images import score_models
from mixmo.evaluation.multiplex import score_multiplexed
from mixmo.evaluation.robustness import score_corruptions, score_ood
from mixmo.evaluation.run_scores import score_runs

__all__ = ["score_corruptions", "score_models", "score_multiplexed", "score_ood", "score_runs"]
