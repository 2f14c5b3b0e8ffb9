"""The largest gradient of each convolution in fp8, which scales the gradients of the next step, all on the device."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mixmo.kernels.layer import Conv3x3FP8
from mixmo.kernels.quantisation import SMALLEST


class Maxima:
    """max |dy| of each layer in fp8, over all parts of a step and all processes.

    The backward pass of a layer leaves it as the gradient of `layer.maximum`. A maximum that is zero, NaN or infinite
    leaves the one before.
    """

    START = 1.0

    def __init__(self, net: nn.Module, several: bool = False) -> None:
        """`several`: the step runs in several processes."""
        layers = {name: layer for name, layer in net.named_modules() if isinstance(layer, Conv3x3FP8)}
        self.names, self.values = list(layers), [layer.maximum for layer in layers.values()]
        self.found: Tensor | None = None  # in the parts of this step
        self.several = several

    def clear(self) -> None:
        """Begin a step."""
        self.found = None
        for value in self.values:
            value.grad = None

    def collect(self) -> None:
        """Take what the backward pass of a part has found."""
        if not self.values:
            return
        found = torch.stack([torch.zeros_like(value) if value.grad is None else value.grad for value in self.values])
        self.found = found if self.found is None else torch.maximum(self.found, found)
        for value in self.values:
            value.grad = None

    @torch.no_grad()
    def update(self, skipped: Tensor | None = None) -> None:
        """Set the maxima to those of this step, unless it is `skipped`."""
        if self.found is None:
            return
        if self.several:
            dist.all_reduce(self.found, dist.ReduceOp.MAX)
        good = (self.found > SMALLEST) & self.found.isfinite()
        if skipped is not None:
            good &= skipped == 0
        torch._foreach_copy_(self.values, list(torch.where(good, self.found, torch.stack(self.values)).unbind()))

    @torch.no_grad()
    def state(self) -> dict[str, float] | None:
        """Return the maxima by the names of the layers, for a checkpoint."""
        return dict(zip(self.names, torch.stack(self.values).tolist(), strict=True)) if self.values else None

    @torch.no_grad()
    def load(self, state: dict[str, float]) -> None:
        """Set the maxima; of a layer that was not in fp8, to the first one."""
        for name, value in zip(self.names, self.values, strict=True):
            value.fill_(state.get(name, self.START))
