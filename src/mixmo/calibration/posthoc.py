"""What held-out data teach a trained network about its own answers: a temperature, sets, when to abstain."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mixmo.calibration.conformal import CONFORMAL, Conformal, fewest, fit_conformal, tune
from mixmo.calibration.selective import Selective, fit_selective
from mixmo.metrics.checks import check_labels, check_logits
from mixmo.metrics.temperature import fit_temperature
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError, check_number, check_whole

LARGEST = 1e9  # of what is fitted: none of it comes near
TUNED = 5  # one held-out sample in so many chooses the constants of RAPS, the others fit its quantile


@dataclass(frozen=True)
class Calibration:
    """Fitted once, saved with the weights, applied to every prediction.

    Everything acts on the mean of the members' logits, for M heads and for the N x M heads of several networks alike;
    another set of members needs another fit. Sets and threshold do not look at the temperature: what they promise is
    exact because no sample that fits them shaped the scores, and a temperature of the same samples would have.
    """

    temperature: float = 1.0
    conformal: Conformal | None = None
    selective: Selective | None = None
    samples: int = 0  # held-out ones
    classes: int = 0  # of them; 0: not known

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature)
        if not 0 < self.temperature < math.inf:
            raise UserError(f"temperature = {self.temperature}; logits are divided by it: give a positive number")
        check_whole("samples", self.samples, least=0)
        check_whole("classes", self.classes, least=0)
        for part in (self.conformal, self.selective):
            for name, value in ({} if part is None else asdict(part)).items():
                if name == "method":
                    CONFORMAL[str(value)]  # an unknown one is refused here, not by the first prediction
                elif name != "randomised":
                    check_number(name, value)
                    if not abs(value) < LARGEST:
                        raise UserError(f"{name} = {value} of a {type(part).__name__}; fit it again")

    def check_classes(self, classes: int) -> None:
        """Refuses a network of other classes than those it was fitted to."""
        if self.classes not in (0, classes):
            raise UserError(
                f"the calibration was fitted to {self.classes} classes, and the network knows {classes}; fit it to "
                "logits of this network with mixmo.calibrate"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts and numbers, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Calibration":
        """What `to_dict` gave.

        >>> Calibration.from_dict(Calibration(1.5, Conformal("lac", 0.9, 0.7)).to_dict()).conformal.quantile
        0.7
        """
        try:
            conformal, selective = fields["conformal"], fields["selective"]
            return cls(
                **fields
                | {
                    "conformal": None if conformal is None else Conformal(**conformal),
                    "selective": None if selective is None else Selective(**selective),
                }
            )
        except (KeyError, TypeError) as error:
            raise UserError(f"this is no calibration that mixmo saved ({error}); fit it again") from error


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
    """Fit temperature, conformal sets and abstention to every head's logits of samples that nothing was trained on.

    For RAPS, one sample in five, at random, chooses its two constants and the others fit the quantile. With `risk=None`
    no threshold is fitted.
    """
    for name, value in (("level", level), ("risk", 0.0 if risk is None else risk), ("delta", delta)):
        check_number(name, value)
    check_whole("seed", seed, least=0)
    logits_MNK = check_logits(logits_MNK, "MNK")
    if bool((logits_MNK >= 0).all()) and torch.allclose(logits_MNK.sum(-1), logits_MNK.new_ones(()), atol=1e-3):
        raise UserError("logits_MNK are probabilities, which sum to one; pass what comes before the softmax: .logits")
    labels_N = check_labels(labels_N, logits_MNK)
    mean_NK, samples = logits_MNK.mean(0), len(labels_N)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(samples, generator=generator).to(labels_N.device)
    u_N = torch.rand(samples, generator=generator, dtype=torch.float64).to(labels_N.device)
    lam, k_reg, rest = 0.0, 0, order
    if method == "raps":
        tuning, rest = order[: samples // TUNED], order[samples // TUNED :]
        if len(tuning) < fewest(level):
            raise UserError(
                f"{samples} held-out samples are too few for RAPS at level {level}, whose constants take a fifth of "
                f"them; give at least {TUNED * fewest(level)}, a lower level, or take lac or aps"
            )
        lam, k_reg = tune(mean_NK[tuning], labels_N[tuning], level, u_N[tuning] if randomised else None)
    conformal = fit_conformal(
        mean_NK[rest], labels_N[rest], level, method, randomised=randomised, lam=lam, k_reg=k_reg, u_N=u_N[rest]
    )
    selective = None if risk is None else fit_selective(mean_NK, labels_N, risk, delta)
    return Calibration(fit_temperature(mean_NK, labels_N), conformal, selective, samples, logits_MNK.shape[-1])
