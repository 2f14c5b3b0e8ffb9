"""What every score asks of its arguments: each check gives back what can be computed with, or raises a `UserError`."""

import torch
from torch import Tensor

from mixmo.utils.errors import UserError

_AXES = {"M": "members", "P": "predictors", "N": "samples", "K": "classes"}


def check_answers(logits: Tensor, labels_N: Tensor, axes: str) -> tuple[Tensor, Tensor]:
    """Logits by `check_logits`, and by `check_labels` the labels of their samples."""
    logits = check_logits(logits, axes)
    return logits, check_labels(labels_N, logits)


def check_logits(logits: Tensor, axes: str) -> Tensor:
    """`logits` in float64: finite, with one dimension a letter of `axes` (such as "MNK") and at least two classes."""
    if not isinstance(logits, Tensor):
        raise UserError(f"logits_{axes} is a {type(logits).__name__}; pass a tensor")
    if logits.ndim != len(axes) or 0 in logits.shape or logits.shape[-1] < 2:
        wanted = ", ".join(_AXES[axis] for axis in axes)
        raise UserError(
            f"logits_{axes} has shape {tuple(logits.shape)}; pass a tensor ({wanted}), none of them empty, "
            "with at least two classes"
        )
    logits = logits.detach().double()
    bad = int((~logits.isfinite()).sum())
    if bad:
        raise UserError(
            f"logits_{axes} holds {bad} NaN or infinite values out of {logits.numel()}; "
            "see whether the training diverged, or leave these samples out"
        )
    return logits


def check_labels(labels_N: Tensor, logits: Tensor) -> Tensor:
    """`labels_N` in int64: one class index a sample of `logits` (..., N, K), on the same device."""
    if not isinstance(labels_N, Tensor):
        raise UserError(f"labels_N is a {type(labels_N).__name__}; pass a tensor of class indices")
    samples, classes = logits.shape[-2:]
    if labels_N.shape != (samples,):
        raise UserError(
            f"labels_N has shape {tuple(labels_N.shape)}, but the logits hold {samples} samples; "
            f"pass a class index for each, of shape ({samples},)"
        )
    if labels_N.dtype in (torch.bool, torch.complex64, torch.complex128) or labels_N.is_floating_point():
        raise UserError(f"labels_N is of type {labels_N.dtype}; pass class indices as integers (int64)")
    if labels_N.device != logits.device:
        raise UserError(f"labels_N is on {labels_N.device} but the logits on {logits.device}; move one to the other")
    low, high = int(labels_N.min()), int(labels_N.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise UserError(
            f"labels_N holds {wrong}, but the logits have {classes} classes; pass class indices from 0 to {classes - 1}"
        )
    return labels_N.long()


def check_scores(scores: Tensor, name: str) -> Tensor:
    """`scores` in float64: one number a sample, at least one sample, infinities allowed."""
    if scores.ndim != 1 or scores.numel() == 0:
        raise UserError(
            f"{name} has shape {tuple(scores.shape)}; pass one score a sample, of shape (samples,), for at least one"
        )
    scores = scores.detach().double()
    if scores.isnan().any():
        raise UserError(f"{name} holds NaN; see whether its logits are finite, or leave these samples out")
    return scores
