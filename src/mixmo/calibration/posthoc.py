"""Post-hoc calibration on held-out data: temperature, conformal sets, selective prediction."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mixmo.calibration.conformal import CONFORMAL, Conformal, fewest_for_level, fit_conformal, tune_raps
from mixmo.calibration.selective import Selective, fit_selective
from mixmo.metrics.checks import check_predictions
from mixmo.metrics.temperature import fit_temperature
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError, check_number, check_whole, first_line

TUNED = 5  # one held-out sample in so many chooses the constants of RAPS, the others fit its quantile


@dataclass(frozen=True)
class Calibration:
    """Post-hoc calibration of an ensemble: fitted by `calibrate`, saved with the weights, applied by `predict`.

    Everything acts on the mean of the members' logits, for M heads and for the N x M heads of several networks alike;
    another set of members needs another fit. Sets and threshold do not use the temperature: their guarantees are exact
    because no sample that fits them shaped the scores, and a temperature of the same samples would have.

    Args:
        temperature: T of softmax(logits / T).
        conformal: Conformal prediction sets.
        selective: Threshold of selective prediction.
        samples: Number of held-out samples.
        classes: Number of classes; 0 if not known.
    """

    temperature: float = 1.0
    conformal: Conformal | None = None
    selective: Selective | None = None
    samples: int = 0
    classes: int = 0

    def __post_init__(self) -> None:
        check_number("temperature of the calibration", self.temperature)
        if not 0 < self.temperature < math.inf:
            raise UserError(f"temperature = {self.temperature}; give a positive number, logits are divided by it")
        if self.conformal is not None:
            CONFORMAL[self.conformal.method]  # an unknown name raises here, not at the first prediction

    def check_classes(self, classes: int) -> None:
        """Raise a UserError unless it was fitted to this number of classes."""
        if self.classes not in (0, classes):
            raise UserError(f"the calibration was fitted to {self.classes} classes, not {classes}; fit it again")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Calibration":
        """Restore what `to_dict` returned, also after a round trip through JSON."""
        try:
            conformal, selective = fields["conformal"], fields["selective"]
            conformal = None if conformal is None else Conformal(**conformal)
            selective = None if selective is None else Selective(**selective)
            return cls(**fields | {"conformal": conformal, "selective": selective})
        except (KeyError, TypeError) as error:
            raise UserError(f"this is not a calibration saved by mixmo ({first_line(error)}); fit it again") from error


@on_cpu
def calibrate(
    logits_MNK: Tensor,
    labels_N: Tensor,
    *,
    level: float = 0.9,
    method: str = "lac",
    randomised: bool = False,
    risk: float | None = 0.05,
    delta: float = 0.05,
    seed: int = 0,
) -> Calibration:
    """Fit temperature, conformal sets and the threshold of selective prediction to held-out data.

    Args:
        logits_MNK: Logits of every head for samples that nothing was trained on, (M, N, K).
        labels_N: Their class indices, (N,).
        level: Target coverage of the conformal sets.
        method: "lac" (smallest sets), "aps" or "raps". For RAPS a random fifth of the samples chooses its constants.
        randomised: Randomise APS and RAPS, as published; their sets are then smaller.
        risk: Maximum selective risk; None fits no threshold.
        delta: Probability that the risk is exceeded nevertheless.
        seed: Of the random numbers.

    Returns:
        The calibration, for `mixmo.predict(net, images, calibration=...)`.

    Raises:
        UserError: If logits and labels do not fit, a number is no probability, or there are too few samples.
    """
    logits_MNK, labels_N = check_predictions(logits_MNK, labels_N)
    mean_NK, samples = logits_MNK.mean(0), len(labels_N)
    if bool((logits_MNK >= 0).all()) and torch.allclose(logits_MNK.sum(-1), logits_MNK.new_ones(()), atol=1e-3):
        raise UserError("logits_MNK are probabilities, which sum to one; pass the logits, before the softmax")
    for name, value in (("level", level), ("delta", delta), ("risk", 0.5 if risk is None else risk)):
        check_number(name, value)
    check_whole("seed", seed, least=0)
    if not all(0 < value < 1 for value in (level, delta, 0.5 if risk is None else risk)):
        raise UserError(f"level = {level}, risk = {risk}, delta = {delta}; give probabilities between 0 and 1")
    needed = fewest_for_level(level) * (TUNED if method == "raps" else 1)
    if samples < needed:
        raise UserError(f"{samples} held-out samples; {method} at level {level} needs {needed}, or a lower level")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(samples, generator=generator).to(labels_N.device)
    u_N = torch.rand(samples, generator=generator, dtype=torch.float64).to(labels_N.device)
    lam, k_reg, rest = 0.0, 0, order
    if method == "raps":
        tuning, rest = order[: samples // TUNED], order[samples // TUNED :]
        lam, k_reg = tune_raps(mean_NK[tuning], labels_N[tuning], level, u_N[tuning] if randomised else None)
    conformal = fit_conformal(
        mean_NK[rest], labels_N[rest], level, method, randomised=randomised, lam=lam, k_reg=k_reg, u_N=u_N[rest]
    )
    selective = None if risk is None else fit_selective(mean_NK, labels_N, risk, delta)
    return Calibration(fit_temperature(mean_NK, labels_N), conformal, selective, samples, logits_MNK.shape[-1])
