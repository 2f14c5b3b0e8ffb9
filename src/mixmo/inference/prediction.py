"""Predictions for a batch of images: logits of every member, and the uncertainties that follow from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from mixmo.calibration.posthoc import Calibration
from mixmo.inference.notebook import Shown, show
from mixmo.metrics import DETECTORS
from mixmo.utils.errors import UserError
from mixmo.utils.tensors import check_dense


@dataclass(frozen=True, eq=False)
class Prediction:
    """Logits of every member for a batch of images, with the probabilities and uncertainties that follow from them.

    The ensemble is the mean of its members' LOGITS, as in the published scores and everywhere in mixmo: `probs` is its
    softmax. The mean of the members' probabilities, `members.mean(0)`, is another predictor, and for the heads of a
    MixMo network a much less confident one. Uncertainties are higher where the prediction is less certain; entropies
    are in nats. All properties are computed once, on the device of the logits.

    Args:
        logits: (M, N, K) for M members (the heads of all networks), N images, K classes.
        calibration: What `mixmo.calibrate` fitted; `calibrated`, `sets` and `abstain` need it.

    >>> import torch
    >>> twice = Prediction(torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]]))  # two members that contradict each other
    >>> twice.probs.tolist(), twice.disagreement.tolist()
    ([[0.5, 0.5]], [1.0])
    """

    logits: Tensor
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        check_dense("logits", self.logits)
        if self.logits.dim() != 3 or not self.logits.is_floating_point():
            raise UserError("logits have another shape; give a tensor (members, samples, classes)")
        if self.calibration is not None:
            self.calibration.check_classes(self.logits.shape[-1])
        if failed := int((~self.logits.isfinite()).any(-1).any(0).sum()):  # the largest would pass for a prediction
            count = f"{failed} of {self.logits.shape[1]} images"
            raise UserError(f"logits of {count} are NaN or infinite; check the images, and whether training diverged")

    @cached_property
    def members(self) -> Tensor:
        """Probabilities of each member (M, N, K): softmax of its logits."""
        return self.logits.softmax(-1)

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities of the ensemble (N, K): softmax of the mean logits."""
        return self.logits.mean(0).softmax(-1)

    @cached_property
    def labels(self) -> Tensor:
        """Predicted classes of the ensemble (N,)."""
        return self.logits.mean(0).argmax(-1)

    @cached_property
    def confidence(self) -> Tensor:
        """Probability of each predicted class (N,): the maximum of `probs`."""
        return self.probs.amax(-1)

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of `probs` (N,), in nats: total uncertainty."""
        return self._detector("entropy")

    @cached_property
    def mutual_information(self) -> Tensor:
        """Entropy of the mean of `members` minus the mean of their entropies (N,), in nats: members disagree."""
        return self._detector("mutual_information")

    @cached_property
    def disagreement(self) -> Tensor:
        """Share of pairs of members that predict different classes (N,)."""
        return self._detector("disagreement")

    @cached_property
    def energy(self) -> Tensor:
        """Negative logsumexp of the mean logits (N,): high for images unlike those of training."""
        return self._detector("energy")

    @cached_property
    def calibrated(self) -> Tensor:
        """Probabilities of the ensemble at the fitted temperature T (N, K): softmax(mean logits / T)."""
        temperature: float = self._fitted("temperature")
        return (self.logits.mean(0) / temperature).softmax(-1)

    @cached_property
    def sets(self) -> Tensor:
        """Conformal prediction sets, bool (N, K): whether a class is in the set of an image."""
        sets: Tensor = self._fitted("conformal").sets(self.logits.double().mean(0))
        return sets

    @cached_property
    def abstain(self) -> Tensor:
        """Selective prediction, bool (N,): whether to abstain to keep the fitted selective risk."""
        abstain: Tensor = self._fitted("selective").abstain(self.logits.double().mean(0))
        return abstain

    def show(
        self,
        images: Tensor | np.ndarray,
        *,
        classes: Sequence[str] | None = None,
        labels: Tensor | Sequence[int] | None = None,
    ) -> Shown:
        """Show images in a notebook beside what the ensemble and each member predict for them.

        Args:
            images: Those that were predicted, (N, C, H, W) or uint8 (N, H, W, C); of many, the first are shown.
            classes: Name of each class; numbers by default.
            labels: True classes (N,).

        Returns:
            What a notebook shows if it is the last value of a cell.

        Raises:
            UserError: If images, names or labels are not as many as the prediction has.
        """
        return show(self, images, classes, labels)

    def _fitted(self, name: str) -> Any:
        fitted = getattr(self.calibration, name, None)
        if fitted is None:
            raise UserError(f"no {name} calibration was fitted; give predict what mixmo.calibrate(..., risk=0.05) fits")
        return fitted

    def _detector(self, name: str) -> Tensor:
        return DETECTORS[name](self.logits).to(self.logits.dtype)
