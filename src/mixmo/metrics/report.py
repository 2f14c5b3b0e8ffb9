"""All scores of an ensemble from its logits: of the mean of the members, of each member, and between them."""

import math
from collections.abc import Collection
from typing import Any, NamedTuple

from torch import Tensor

from mixmo.metrics.checks import check_predictions
from mixmo.metrics.diversity import DIVERSITY, pair_mean
from mixmo.metrics.scores import METRICS, ece, nll
from mixmo.metrics.temperature import Halves, calibrate_halves, random_halves
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError


class Scores(NamedTuple):
    """The scores of one predictor: one field per built-in metric of `METRICS`, and the calibrated `nllc` and `ecec`.

    These are means over two halves, each at the temperature of the other, as in the paper's tables. ECE is biased
    upwards by small samples: `ecec` may exceed `ece`, which is over all samples.
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
    own: dict[str, float]  # user-defined metrics, by name


class Diversity(NamedTuple):
    """Means over pairs of predictors: one field per built-in measure of `DIVERSITY`; `own` holds user-defined ones."""

    ratio_error: float
    agreement: float
    disagreement: float
    q_statistic: float
    error_correlation: float
    kl: float
    own: dict[str, float]


class Report(NamedTuple):
    """What `evaluate` returns."""

    ensemble: Scores  # of the mean of the members' logits
    members: tuple[Scores, ...]  # each alone, with its own temperatures
    diversity: Diversity | None  # None for a single member

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and floats for JSON: None for NaN; user-defined scores beside the others."""
        return {
            "ensemble": plain(self.ensemble),
            "members": [plain(member) for member in self.members],
            "diversity": self.diversity and plain(self.diversity),
        }


def json_ready(value: Any) -> Any:
    """Convert nested values to what JSON has: dicts with text keys, lists, and None for NaN and infinity.

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
    """Compute every score of an ensemble, of each member, and their diversity.

    For an ensemble of several networks, stack the members of all of them: `torch.cat([first_MNK, second_MNK])`.

    Args:
        logits_MNK: Logits of every member, (M, N, K).
        labels_N: Class indices, (N,).
        seed: Of the two random halves for the calibrated scores, the same for the ensemble and all members.
        halves: The indices of the two halves, a partition of the samples, instead of random ones.

    Returns:
        All scores.

    Raises:
        UserError: If logits and labels do not fit.
    """
    logits_MNK, labels_N = check_predictions(logits_MNK, labels_N)
    if len(labels_N) < 2:
        raise UserError("there is one sample, and calibrated scores need two halves; give more")
    halves = random_halves(len(labels_N), seed) if halves is None else halves
    diversity = None
    if len(logits_MNK) > 1:
        means = {name: pair_mean(DIVERSITY[name](logits_MNK, labels_N).double()).item() for name in DIVERSITY}
        diversity = Diversity(**_fields(means, Diversity._fields))
    return Report(
        ensemble=_score(logits_MNK.mean(0), labels_N, halves),
        members=tuple(_score(logits_NK, labels_N, halves) for logits_NK in logits_MNK),
        diversity=diversity,
    )


def _score(logits_NK: Tensor, labels_N: Tensor, halves: Halves) -> Scores:
    calibrated = calibrate_halves(logits_NK, labels_N, halves)
    values = {name: float(METRICS[name](logits_NK, labels_N)) for name in METRICS}
    return Scores(
        **_fields(values, Scores._fields),
        nllc=calibrated.score(nll, labels_N).item(),
        ecec=calibrated.score(ece, labels_N).item(),
        temperatures=calibrated.temperatures,
    )


def _fields(values: dict[str, float], known: Collection[str]) -> dict[str, Any]:
    """The values by field; those without a field in `own`."""
    own = {name: value for name, value in values.items() if name not in known}
    return {name: value for name, value in values.items() if name in known} | {"own": own}


def plain(scores: Scores | Diversity) -> dict[str, Any]:
    """As in `Report.to_dict`."""
    ours = scores._asdict()
    own = ours.pop("own")
    return {name: json_ready(value) for name, value in (ours | own).items()}
