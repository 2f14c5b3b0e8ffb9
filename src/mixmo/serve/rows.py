"""The prediction of one image, as the API returns it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mixmo.inference.naming import named_sets, names_or_numbers
from mixmo.inference.prediction import Prediction

Top = list[tuple[str, float]]  # the most probable classes, most probable first, and their probabilities


@dataclass(frozen=True)
class Row:
    """The prediction of one image, in plain numbers."""

    label: str
    index: int
    probability: float
    calibrated_probability: float | None
    entropy: float
    mutual_information: float
    disagreement: float
    set: list[str] | None
    abstain: bool | None
    ensemble: Top
    members: list[Top]

    def cut(self, top: int) -> "Row":
        """Keep `top` classes."""
        return replace(self, ensemble=self.ensemble[:top], members=[member[:top] for member in self.members])

    def to_dict(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self).items() if name not in ("ensemble", "members")}
        return plain | {"ensemble": named(self.ensemble), "members": [named(member) for member in self.members]}


def describe(prediction: Prediction, classes: Sequence[str] | None, top: int) -> list[Row]:
    """Return one row per image, with the `top` most probable classes."""
    names = names_or_numbers(classes, prediction.probs.shape[1])
    calibration, count = prediction.calibration, prediction.probs.shape[0]
    calibrated: Sequence[float | None] = [None] * count
    sets: Sequence[list[str] | None] = [None] * count
    abstain: Sequence[bool | None] = [None] * count
    if calibration is not None:
        calibrated = prediction.calibrated.amax(1).tolist()
        if calibration.conformal is not None:
            sets = named_sets(prediction, names)
        if calibration.selective is not None:
            abstain = prediction.abstain.tolist()
    labels = prediction.labels.tolist()
    columns: tuple[Sequence[Any], ...] = (
        [names[k] for k in labels],
        labels,
        prediction.confidence.tolist(),
        calibrated,
        prediction.entropy.tolist(),
        prediction.mutual_information.tolist(),
        prediction.disagreement.tolist(),
        sets,
        abstain,
        tops(prediction.probs, names, top),
        [list(each) for each in zip(*(tops(member, names, top) for member in prediction.members), strict=True)],
    )
    return [Row(*fields) for fields in zip(*columns, strict=True)]


def tops(probs_NK: Tensor, names: Sequence[str], top: int) -> list[Top]:
    """Return the most probable classes of each image."""
    values, indices = probs_NK.topk(min(top, probs_NK.shape[1]), dim=1)
    pairs = zip(values.tolist(), indices.tolist(), strict=True)
    return [[(names[k], p) for p, k in zip(probs, classes, strict=True)] for probs, classes in pairs]


def named(top: Top) -> list[dict[str, Any]]:
    return [{"label": label, "probability": probability} for label, probability in top]
