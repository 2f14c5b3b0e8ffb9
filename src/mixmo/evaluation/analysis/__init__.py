"""Analysis of runs beyond their scores: use of filters, training dynamics, diversity of the members."""

from mixmo.evaluation.analysis.dynamics import average, columns, to_csv
from mixmo.evaluation.analysis.filters import activity, core_norms, encoder_norms
from mixmo.evaluation.analysis.summary import Analysis, analyse

__all__ = ["Analysis", "activity", "analyse", "average", "columns", "core_norms", "encoder_norms", "to_csv"]
