"""Networks in training or in evaluation mode for a while, each part of them then as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_kept(*nets: nn.Module) -> Iterator[None]:
    """Whatever changes the modes within, afterwards they are what they were."""
    before = [(module, module.training) for net in nets for module in net.modules()]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def evaluating(*nets: nn.Module) -> Iterator[None]:
    """The networks in eval mode."""
    with modes_kept(*nets):
        for net in nets:
            net.eval()
        yield
