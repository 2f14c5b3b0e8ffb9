"""Analysis of runs beyond their scores: use of filters, training dynamics, diversity of the members."""

from mixmo.evaluation.analysis.dynamics import average, columns, to_csv
from mixmo.evaluation.analysis.filters import Activity, activity, core_norms, encoder_norms, separation
from mixmo.evaluation.analysis.summary import Analysis, analyse

__all__ = [
    "Activity",
    "Analysis",
    "activity",
    "analyse",
    "average",
    "columns",
    "core_norms",
    "encoder_norms",
    "separation",
    "to_csv",
]
