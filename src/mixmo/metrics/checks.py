"""Argument checks of the public entries (`evaluate`, `fit_temperature`, `calibrate`, ...); kernels have none."""

from torch import Tensor

from mixmo.utils.errors import UserError

_AXES = {"M": "members", "N": "samples", "K": "classes"}


def check_predictions(logits: Tensor, labels_N: Tensor, axes: str) -> tuple[Tensor, Tensor]:
    """Float64 logits of the dimensions `axes` (such as "MNK") and int64 labels, or a UserError if they do not fit."""
    for name, value in ((f"logits_{axes}", logits), ("labels_N", labels_N)):
        if not isinstance(value, Tensor):
            raise UserError(f"{name} is a {type(value).__name__}; pass a tensor")
    if logits.ndim != len(axes) or 0 in logits.shape or logits.shape[-1] < 2:
        wanted = ", ".join(_AXES[axis] for axis in axes)
        raise UserError(f"logits_{axes} has shape {tuple(logits.shape)}; pass ({wanted}) with at least two classes")
    if not logits.isfinite().all():
        raise UserError(f"logits_{axes} contains NaN or infinite values; check whether training diverged")
    samples, classes = logits.shape[-2:]
    if labels_N.shape != (samples,) or labels_N.is_floating_point():
        raise UserError(
            f"labels_N is {labels_N.dtype} of shape {tuple(labels_N.shape)}; pass one class index (integer) for "
            f"each of the {samples} samples"
        )
    if labels_N.min() < 0 or labels_N.max() >= classes:
        found = f"{int(labels_N.min())} to {int(labels_N.max())}"
        raise UserError(f"labels_N contains {found}, but the classes of the logits are 0 to {classes - 1}")
    return logits.detach().double(), labels_N.long()


def check_scores(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Float64 scores of in-distribution and out-of-distribution samples, or a UserError."""
    for name, scores in (("inside_scores", inside), ("outside_scores", outside)):
        if scores.ndim != 1 or scores.numel() == 0 or scores.isnan().any():
            shape = tuple(scores.shape)
            raise UserError(f"{name} has shape {shape}, or contains NaN; pass one score per sample, (samples,)")
    return inside.detach().double(), outside.detach().double()
