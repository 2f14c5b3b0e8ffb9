"""Networks without memory for their weights, to check whether weights fit before memory is allocated."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from mixmo.utils.errors import UserError, quoted

LARGEST = 4096  # pixels per side of an image
MAKERS: set[Callable[..., Any]] = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}
COPY = re.compile(r"\.copies\.(\d+)\.")  # of a stem or head, by member


class Hollow(TorchFunctionMode):
    """Large tensors are made without storage, on the meta device.

    Args:
        makers: The functions of torch that make them; layers take their weights from torch.empty.
        least: Elements of a large tensor: RegNet computes its widths with small ones.
    """

    def __init__(self, makers: Collection[Callable[..., Any]] = (torch.empty,), least: int = 0) -> None:
        super().__init__()
        self.makers, self.least = makers, least

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in self.makers:
            hollow = function(*args, **kwargs | {"device": "meta"})
            if hollow.numel() >= self.least:
                return hollow
        return function(*args, **kwargs)


def check_backbone(
    make: Callable[[], nn.Module], members: int, size: Sequence[int], stored: Mapping[str, torch.Size]
) -> None:
    """Raise an error for a backbone that has more weights than are stored, or members or images of another size.

    Args:
        make: Makes the bare backbone.
        members: Members that it is to have.
        size: (C, H, W) of the images.
        stored: Shapes of the weights of the wrapped network.
    """
    sides = list(size)
    if len(sides) != 3 or not all(type(side) is int and 1 <= side <= LARGEST for side in sides):
        raise UserError(f"size = {quoted(size)}; give (channels, height, width), at most {LARGEST} pixels")
    copies = {int(found[1]) for name in stored if (found := COPY.search(name))}
    if members != len(copies) and (members, copies) != (1, set()):
        raise UserError(f"members = {quoted(members)}, and the weights are of {len(copies)}; save the network again")
    there = sum(shape.numel() for shape in stored.values())
    needed = 0
    with suppress(Exception), Hollow(MAKERS, least=10_000):  # what fails here fails, or not, where it is made for use
        needed = sum(tensor.numel() for tensor in make().state_dict().values())
    if needed > there:
        raise UserError(f"it has {needed:,} weights, and {there:,} are stored; save the network again")
