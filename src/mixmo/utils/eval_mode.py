"""Switch networks that no other thread uses to eval mode for a while; others by `mixmo.surgery.eval_view`."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_kept(*nets: nn.Module) -> Iterator[None]:
    """Restore the training or eval mode of every module afterwards."""
    before = [(module, module.training) for net in nets for module in net.modules()]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def evaluating(*nets: nn.Module) -> Iterator[None]:
    """Put the networks in eval mode, and restore their modes afterwards."""
    with modes_kept(*nets):
        for net in nets:
            net.eval()
        yield
