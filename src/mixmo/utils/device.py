"""The default device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def _default_cpu() -> Iterator[None]:
    with torch.device("cpu"):
        yield


# Decorates a function so that its default device is the CPU, whatever `torch.set_default_device` was given: random
# numbers are drawn on the CPU there, and tensors on two devices could not be combined.
on_cpu = _default_cpu()
