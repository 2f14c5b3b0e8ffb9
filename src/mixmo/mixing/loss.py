"""The weighted loss (paper, equation 1)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixmo.mixing.targets import check_values
from mixmo.mixing.types import Mix
from mixmo.utils.errors import UserError, check_number
from mixmo.utils.tensors import check_dense


def loss(logits: Tensor, mix: Mix, *, label_smoothing: float = 0.0, class_weights: Tensor | None = None) -> Tensor:
    """Return the MixMo loss: each head's cross-entropy, weighted by how visible its input is.

        L = sum_i mean_n w_r(kappa_i) CE(y_i, d_i)      (equation 1)

    It is computed in float32 at least, whatever the precision of the network.

    Args:
        logits: Logits d_i of every head for the mixed batch, (heads, N, K): `net(mix)`.
        mix: The mixed batch, with the targets y_i and the weights w_r(kappa_i).
        label_smoothing: Share of each target that is spread over all classes.
        class_weights: Weight of each class (K,), as in `torch.nn.functional.cross_entropy`.

    Returns:
        The loss, 0-dim.

    Raises:
        UserError: If logits and targets do not fit, or (on a CPU) a label is not a class.
    """
    logits_MNK, targets = _checked(logits, mix)
    class_weights_K = _checked_options(logits_MNK, label_smoothing, class_weights)
    entropy_MN = F.cross_entropy(
        logits_MNK.flatten(0, 1),
        targets.flatten(0, 1),
        class_weights_K,
        reduction="none",
        label_smoothing=label_smoothing,
    ).view_as(mix.weights)
    return (mix.weights * entropy_MN).mean(1).sum()


class MixMoLoss(nn.Module):
    """Criterion for training loops that use one for training and evaluation: `criterion(net(mix), mix)`.

    >>> criterion = MixMoLoss()
    >>> criterion(torch.zeros(4, 10), torch.tensor([1, 2, 3, 4])).item() == torch.tensor(10.0).log().item()
    True
    """

    def forward(self, logits: Tensor, target: Mix | Tensor) -> Tensor:
        """Return `loss` of a Mix, or the mean cross-entropy of the ensemble for plain labels.

        Args:
            logits: (heads, N, K) for a Mix, else the ensemble's (N, K).
            target: The Mix, or class indices (N,) or soft targets (N, K).
        """
        return loss(logits, target) if isinstance(target, Mix) else F.cross_entropy(*_checked_targets(logits, target))


def _checked_options(logits_MNK: Tensor, label_smoothing: float, class_weights: Tensor | None) -> Tensor | None:
    """Class weights in the precision of the logits."""
    check_number("label_smoothing", label_smoothing)
    if not 0 <= label_smoothing <= 1:
        raise UserError(f"label_smoothing = {label_smoothing}; give a share from 0 to 1")
    if class_weights is None:
        return None
    check_dense("class_weights", class_weights)
    classes, device = logits_MNK.shape[-1], logits_MNK.device
    if class_weights.shape != (classes,) or class_weights.device != device:
        given = f"class_weights have shape {tuple(class_weights.shape)} on {class_weights.device}"
        raise UserError(f"{given}; give one for each of {classes} classes, on {device}")
    if device.type == "cpu" and not torch.compiler.is_compiling():  # elsewhere the host would wait for the values
        valid = (class_weights >= 0) & (class_weights < torch.inf)
        if not valid.all():
            raise UserError(f"a class weight is {class_weights[~valid][0].item():.6g}; give finite ones, 0 or more")
    return class_weights.to(logits_MNK.dtype)


def _checked(logits: Tensor, mix: Mix) -> tuple[Tensor, Tensor]:
    """Logits and targets of a Mix as cross-entropy takes them."""
    check_dense("logits", logits)
    if not isinstance(mix, Mix) or logits.shape[:-1] != mix.weights.shape:
        given = f"a Mix of (heads, samples) = {tuple(mix.weights.shape)}" if isinstance(mix, Mix) else "no Mix"
        raise UserError(f"logits of shape {tuple(logits.shape)} and {given}; call loss(net(mix), mix)")
    return _checked_targets(logits, mix.targets)


def _checked_targets(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (..., K) in float32 at least; targets as class indices (...) or soft targets (..., K)."""
    for name, tensor in (("logits", logits), ("targets", targets)):
        check_dense(name, tensor)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    classes, soft = logits.shape[-1], targets.shape == logits.shape
    if not soft and (targets.shape != logits.shape[:-1] or targets.is_floating_point()):
        given = f"{targets.dtype} of shape {tuple(targets.shape)} for logits {tuple(logits.shape)}"
        raise UserError(f"targets are {given}; give integer class indices, or soft targets (..., K)")
    check_values(targets, soft, classes)
    if soft:
        return logits, targets if targets.is_floating_point() else targets.to(logits.dtype)
    return logits, targets.long()
