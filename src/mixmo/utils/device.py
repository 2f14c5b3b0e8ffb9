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


HALF = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
PRECISIONS = ("fp32", *HALF)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the context in which a network computes in a precision: fp32, bf16, fp16 or fp8 (that of bf16)."""
    return torch.autocast(device.type, HALF.get(precision), enabled=precision in HALF)
