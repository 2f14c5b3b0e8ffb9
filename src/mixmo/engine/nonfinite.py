"""Skip steps whose loss or gradient is NaN or infinite, on the device, without synchronisation."""

from itertools import chain

import torch
from torch import Tensor, nn


def skip_flag(optimizer: torch.optim.Optimizer, device: torch.device) -> Tensor:
    """Return a flag on the device; while it is 1, the fused optimiser changes neither weights nor momentum."""
    flag = torch.zeros((), device=device)
    vars(optimizer)["found_inf"] = flag
    # If the first step is skipped, torch 2.13 leaves the momentum that it has just allocated without values.
    for group in optimizer.param_groups:
        if isinstance(optimizer, torch.optim.SGD) and group["momentum"]:
            for parameter in group["params"]:
                optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
    return flag


class Skip:
    """Skip the update of a step whose gradient is NaN or infinite, and undo its change of the batch statistics."""

    def __init__(self, net: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.flag = skip_flag(optimizer, device)
        self.one = torch.ones((), device=device)
        buffers = list(net.buffers())
        # Tensors of one type are copied in one launch.
        self.buffers = [[b for b in buffers if b.dtype == kind] for kind in {b.dtype for b in buffers}]
        self.before = [[b.clone() for b in some] for some in self.buffers]

    def remember(self) -> None:
        for before, buffers in zip(self.before, self.buffers, strict=True):
            torch._foreach_copy_(before, buffers)

    def check(self, gradients: list[Tensor]) -> None:
        """Set the flag if a gradient is NaN or infinite."""
        self.flag.zero_()
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, self.flag, self.one)

    def undo(self, bad: Tensor) -> None:
        """Restore the batch statistics of before the step if it was `bad`."""
        for before, buffer in zip(chain(*self.before), chain(*self.buffers), strict=True):
            torch.where(bad, before, buffer, out=buffer)
