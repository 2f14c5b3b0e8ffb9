"""Argument checks of the public entries `evaluate` and `mixmo.calibrate`; the functions below them have none."""

from torch import Tensor

from mixmo.utils.errors import UserError
from mixmo.utils.tensors import check_filled


def check_predictions(logits_MNK: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
    """Float64 logits and int64 labels, or a UserError if they do not fit."""
    if not isinstance(logits_MNK, Tensor) or not isinstance(labels_N, Tensor):
        raise UserError(f"got a {type(logits_MNK).__name__} and a {type(labels_N).__name__}; pass tensors")
    check_filled("logits_MNK", logits_MNK)
    check_filled("labels_N", labels_N)
    if logits_MNK.ndim != 3 or 0 in logits_MNK.shape or logits_MNK.shape[-1] < 2:
        raise UserError(f"logits_MNK has shape {tuple(logits_MNK.shape)}; pass (members, samples, 2 or more classes)")
    if not logits_MNK.isfinite().all():
        raise UserError("logits_MNK contains NaN or infinite values; check whether training diverged")
    _, samples, classes = logits_MNK.shape
    if labels_N.shape != (samples,) or labels_N.is_floating_point():
        given = f"{labels_N.dtype} of shape {tuple(labels_N.shape)}"
        raise UserError(f"labels_N is {given}; pass one class index (integer) for each of {samples} samples")
    labels_N = labels_N.long()  # unsigned ones of 16 bits and more cannot be compared
    if labels_N.min() < 0 or labels_N.max() >= classes:
        raise UserError(
            f"labels_N contains values that are not class indices; the classes of the logits are 0 to {classes - 1}"
        )
    return logits_MNK.detach().double(), labels_N
