"""What a network, or an ensemble of several, says of a batch of images, and how sure it is."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from mixmo.calibration.posthoc import Calibration
from mixmo.metrics import DETECTORS
from mixmo.utils.errors import UserError


@dataclass(frozen=True, eq=False)
class Prediction:
    """Every head's logits, and what follows from them; M counts the heads of all networks.

    The ensemble is the mean of its members' LOGITS, as in the published scores and in everything that mixmo computes:
    `probs` is its softmax. The mean of the members' probabilities, `members.mean(0)`, is another predictor, and for the
    heads of a MixMo network a much less confident one. Uncertainties are in nats where they have a unit, and higher is
    less sure.

    >>> import torch
    >>> twice = Prediction(torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]]))  # two heads that contradict each other
    >>> twice.probs.tolist(), twice.disagreement.tolist()
    ([[0.5, 0.5]], [1.0])
    """

    logits: Tensor  # (M, N, K)
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.logits, Tensor) or self.logits.dim() != 3:
            what = tuple(self.logits.shape) if isinstance(self.logits, Tensor) else type(self.logits).__name__
            raise UserError(f"a prediction of logits {what}; give a tensor (members, samples, classes)")
        if self.calibration is not None:
            self.calibration.check_classes(self.logits.shape[-1])
        finite = int(self.logits.isfinite().all(-1).all(0).sum())
        if finite < self.logits.shape[1]:  # the largest of them would pass for an answer
            raise UserError(
                f"the network answers NaN or infinite values to {self.logits.shape[1] - finite} of "
                f"{self.logits.shape[1]} images, which is no answer; see whether its training diverged, and its images "
                "are normalised as in training"
            )

    @cached_property
    def members(self) -> Tensor:
        """Probabilities of each member (M, N, K)."""
        return self.logits.softmax(-1)

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities of the ensemble (N, K)."""
        return self.logits.mean(0).softmax(-1)

    @cached_property
    def labels(self) -> Tensor:
        """The ensemble's answers (N,)."""
        return self.logits.mean(0).argmax(-1)

    @cached_property
    def confidence(self) -> Tensor:
        """The probability of each answer (N,)."""
        return self.probs.amax(-1)

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of `probs` (N,): all uncertainty."""
        return self._detector("entropy")

    @cached_property
    def mutual_information(self) -> Tensor:
        """Entropy of the mean of `members` less the mean of their entropies (N,): what the members dispute."""
        return self._detector("mutual_information")

    @cached_property
    def disagreement(self) -> Tensor:
        """Share of pairs of members that give different answers (N,)."""
        return self._detector("disagreement")

    @cached_property
    def energy(self) -> Tensor:
        """-logsumexp of the ensemble's logits (N,): high for images unlike those trained on."""
        return self._detector("energy")

    @cached_property
    def calibrated(self) -> Tensor:
        """Probabilities of the ensemble at the fitted temperature (N, K): softmax(mean logits / T)."""
        return (self.logits.mean(0) / self._fitted.temperature).softmax(-1)

    @cached_property
    def sets(self) -> Tensor:
        """Which classes are in the conformal set of each image, bool (N, K)."""
        conformal = self._fitted.conformal
        if conformal is None:
            raise UserError("the calibration has no conformal sets; fit one with mixmo.calibrate")
        return conformal.sets(self.logits.double().mean(0))

    @cached_property
    def abstain(self) -> Tensor:
        """Which answers are better not given, for the fitted risk, bool (N,)."""
        selective = self._fitted.selective
        if selective is None:
            raise UserError("the calibration has no abstain threshold; fit one with mixmo.calibrate(..., risk=0.05)")
        return selective.abstain(self.logits.double().mean(0))

    @property
    def _fitted(self) -> Calibration:
        if self.calibration is None:
            raise UserError(
                "this prediction is not calibrated; fit held-out logits with mixmo.calibrate(logits, labels) and give "
                "the result to mixmo.predict(..., calibration=...)"
            )
        return self.calibration

    def _detector(self, name: str) -> Tensor:
        return DETECTORS[name](self.logits).to(self.logits.dtype)
