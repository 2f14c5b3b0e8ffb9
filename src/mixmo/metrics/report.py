"""All scores of an ensemble from its stored logits: of the mean of the members, of each member, and between them."""

import math
from collections.abc import Collection
from typing import Any, NamedTuple

from torch import Tensor

from mixmo.metrics.checks import check_answers
from mixmo.metrics.diversity import DIVERSITY, pair_mean
from mixmo.metrics.scores import METRICS, ece, nll
from mixmo.metrics.temperature import Halves, calibrate_halves
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError, first_line


class Scores(NamedTuple):
    """The scores of one predictor: one field for each of our `METRICS`, and those after calibration.

    `nllc` and `ecec` are means over two halves, as in the paper's tables; `ece` is over all samples, and since ECE is
    biased upwards by small samples, an `ecec` above `ece` need not mean that calibration harmed.
    """

    top1: float  # shares, from 0 to 1
    top5: float
    nll: float
    nllc: float
    brier: float
    ece: float
    ecec: float
    tace: float
    auc: float
    temperatures: tuple[float, float]  # fitted on the first and on the second half
    own: dict[str, float]  # of metrics that users added to `METRICS`


class Diversity(NamedTuple):
    """The means over pairs of predictors: one field for each of our `DIVERSITY`."""

    ratio_error: float
    agreement: float
    disagreement: float
    q_statistic: float
    error_correlation: float
    kl: float
    own: dict[str, float]  # of measures that users added to `DIVERSITY`


class Report(NamedTuple):
    """What `evaluate` found."""

    ensemble: Scores  # of the mean of the members' logits
    members: tuple[Scores, ...]  # each alone, with its own temperatures
    diversity: Diversity | None  # None for a single member

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and floats, ready for JSON: None for NaN; scores of users' own beside ours."""
        return {
            "ensemble": plain(self.ensemble),
            "members": [plain(member) for member in self.members],
            "diversity": self.diversity and plain(self.diversity),
        }


def json_ready(value: Any) -> Any:
    """Nested values as JSON can hold them, which has no named tuples, no NaN and no infinity, and whose keys are text.

    >>> json_ready({1: [1.0, float("nan")], "top1": 0.5})
    {'1': [1.0, None], 'top1': 0.5}
    """
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): json_ready(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@on_cpu
def evaluate(logits_MNK: Tensor, labels_N: Tensor, seed: int = 0, halves: Halves | None = None) -> Report:
    """Every score of the ensemble whose members have these logits.

    For an ensemble of several networks, stack the members of all of them: `torch.cat([first_MNK, second_MNK])`. Two
    halves are drawn from `seed` for the calibration, the same for all, unless `halves` gives them.
    """
    logits_MNK, labels_N = check_answers(logits_MNK, labels_N, "MNK")
    diversity = None
    if len(logits_MNK) > 1:
        means = {name: _mean(name, DIVERSITY[name](logits_MNK, labels_N), len(logits_MNK)) for name in DIVERSITY}
        diversity = Diversity(**_fields(means, Diversity._fields))
    return Report(
        ensemble=score(logits_MNK.mean(0), labels_N, seed, halves),
        members=tuple(score(logits_NK, labels_N, seed, halves) for logits_NK in logits_MNK),
        diversity=diversity,
    )


def score(logits_NK: Tensor, labels_N: Tensor, seed: int = 0, halves: Halves | None = None) -> Scores:
    """Every score of one predictor."""
    calibrated = calibrate_halves(logits_NK, labels_N, seed, halves)
    values = {name: _number(name, METRICS[name](logits_NK, labels_N)) for name in METRICS}
    return Scores(
        **_fields(values, Scores._fields),
        nllc=calibrated.score(nll, labels_N).item(),
        ecec=calibrated.score(ece, labels_N).item(),
        temperatures=calibrated.temperatures,
    )


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"the metric '{name}' gives no number ({first_line(error)}); let it give one") from error


def _mean(name: str, matrix_MM: Any, members: int) -> float:
    if not isinstance(matrix_MM, Tensor) or matrix_MM.shape != (members, members):
        shape = tuple(getattr(matrix_MM, "shape", ()))
        raise UserError(
            f"the diversity measure '{name}' gives a {type(matrix_MM).__name__} {shape}; let it give a tensor (M, M)"
        )
    return pair_mean(matrix_MM.double()).item()


def _fields(values: dict[str, float], known: Collection[str]) -> dict[str, Any]:
    """The values by field; those without a field of their own in `own`."""
    own = {name: value for name, value in values.items() if name not in known}
    return {name: value for name, value in values.items() if name in known} | {"own": own}


def plain(scores: Scores | Diversity) -> dict[str, Any]:
    """Ready for JSON: scores of users' own beside ours."""
    ours = scores._asdict()
    own = ours.pop("own")
    return {name: json_ready(value) for name, value in (ours | own).items()}
