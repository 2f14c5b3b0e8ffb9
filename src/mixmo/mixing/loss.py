"""The weighted loss (paper, equation 1)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixmo.mixing.types import Mix
from mixmo.utils.errors import UserError

SLACK = 0.02  # of the sum of soft targets, which may be bfloat16


def loss(logits: Tensor, mix: Mix) -> Tensor:
    """L = sum_i mean_n w_r(kappa_i) CE(y_i, d_i): each head's cross-entropy, weighted by how much it could see.

    `logits` (heads, N, K) are the network's answer to the Mix. In float32 at least, whatever the network's precision.
    """
    if not isinstance(logits, Tensor) or not isinstance(mix, Mix):
        raise UserError(
            f"loss of a {type(logits).__name__} and a {type(mix).__name__}; give the network's answer to a Mix, and "
            "the Mix: loss(net(mix), mix)"
        )
    if logits.dim() != 3 or logits.shape[:2] != mix.weights.shape:
        heads, samples = mix.weights.shape
        raise UserError(
            f"logits have shape {tuple(logits.shape)} for a Mix of {heads} answers to {samples} samples; give the "
            f"answer of a network of {heads} members to this Mix: loss(net(mix), mix)"
        )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    targets = fitting(mix.targets, logits)
    entropy = F.cross_entropy(logits.flatten(0, 1), targets.flatten(0, 1), reduction="none")
    return (mix.weights * entropy.view_as(mix.weights)).mean(1).sum()


class MixMoLoss(nn.Module):
    """A criterion for loops that have one for training and evaluation: `criterion(net(mix), mix)`.

    Of a Mix it is `loss`; of plain labels (N,), or soft targets (N, K), the cross-entropy of the ensemble (N, K).

    >>> criterion = MixMoLoss()
    >>> criterion(torch.zeros(4, 10), torch.tensor([1, 2, 3, 4])).item() == torch.tensor(10.0).log().item()
    True
    """

    def forward(self, logits: Tensor, target: Mix | Tensor) -> Tensor:
        if isinstance(target, Mix):
            return loss(logits, target)
        for name, given in (("logits", logits), ("target", target)):
            if not isinstance(given, Tensor):
                raise UserError(f"{name} is a {type(given).__name__}; give logits (N, K), and labels (N,) or a Mix")
        return F.cross_entropy(logits.float(), fitting(target, logits))


def fitting(targets: Tensor, logits: Tensor) -> Tensor:
    """Targets as cross-entropy takes them: class indices, or soft targets with a value a class of `logits` (..., K)."""
    classes = logits.shape[-1]
    if targets.shape == logits.shape[:-1]:
        if targets.is_floating_point():
            raise UserError(f"labels are of type {targets.dtype}; give class indices as integers")
        targets = targets.long()
        if _may_look(targets):
            low, high = (int(value) for value in targets.aminmax())
            if low < 0 or high >= classes:
                raise UserError(
                    f"labels hold {low if low < 0 else high}, but the network knows {classes} classes; "
                    f"give class indices from 0 to {classes - 1}"
                )
        return targets
    if targets.shape[:-1] != logits.shape[:-1]:
        raise UserError(
            f"targets have shape {tuple(targets.shape)} for logits of shape {tuple(logits.shape)}; give a class index "
            "a sample, or a value a class"
        )
    if targets.shape[-1] != classes:
        raise UserError(
            f"soft targets give {targets.shape[-1]} classes, but the network knows {classes}; give a value for each"
        )
    targets = targets if targets.is_floating_point() else targets.to(logits.dtype)
    if _may_look(targets):
        sums = targets.float().sum(-1)
        wrong = sums[~((sums - 1).abs() < SLACK)]
        if wrong.numel():
            raise UserError(
                f"the soft targets of a sample sum to {wrong[0].item():.4g}; give probabilities, which sum to one: a "
                "sample has one class, and several labels at once cannot be learned"
            )
    return targets


def _may_look(targets: Tensor) -> bool:
    """Whether their values can be checked: on an accelerator, looking at them would make the host wait for it."""
    return targets.device.type == "cpu" and targets.numel() > 0 and not torch.compiler.is_compiling()
