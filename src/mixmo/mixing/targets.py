"""The check of labels and soft targets, which `Mixer` and `loss` share."""

import torch
from torch import Tensor

from mixmo.utils.errors import UserError

TOLERANCE = 0.02  # of the sum of soft targets, which may be bfloat16


def check_values(targets: Tensor, soft: bool, classes: int | None) -> None:
    """Raise a UserError for a label that is no class, or soft targets that are no probabilities, where it is free.

    On another device than a CPU the host would wait for the values.
    """
    if targets.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if not soft:
        targets = targets.long()  # or the comparison with a large number would be in a narrow type
        valid = targets >= 0 if classes is None else (targets >= 0) & (targets < classes)
        if not valid.all():
            known = "0 to K - 1" if classes is None else f"0 to {classes - 1}"
            raise UserError(f"a label is {targets[~valid][0].item():.6g}; classes are {known}")
        return
    sums = targets.float().sum(-1)
    valid = (sums - 1).abs() < TOLERANCE
    if not valid.all():
        found = sums[~valid][0].item()
        raise UserError(f"a soft target sums to {found:.6g}; give probabilities of one class, which sum to 1")
    if targets.numel() and (least := targets.min().item()) < 0:
        raise UserError(f"a soft target has {least:.6g}; give probabilities of one class, from 0 to 1")
