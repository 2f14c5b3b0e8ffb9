"""How much memory there is, and how it is told that there is too little."""

import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from mixmo.utils.errors import UserError

GROUP = Path("/sys/fs/cgroup")  # of a container


def free() -> int:
    """Bytes of the host, or what a container leaves of it, that nothing uses."""
    unused = _physical()
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        unused = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        unused = min(unused, int((GROUP / "memory.max").read_text()) - int((GROUP / "memory.current").read_text()))
    except (OSError, ValueError, StopIteration):  # not Linux, or a group without a limit
        pass
    return unused


def total(device: torch.device) -> int:
    """Bytes of a GPU, or of the host or its container; the meta device stores nothing, and holds whatever counts."""
    if device.type == "meta":
        return sys.maxsize
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return min(_physical(), int((GROUP / "memory.max").read_text()))
    except (OSError, ValueError):
        return _physical()


def _physical() -> int:
    if not hasattr(os, "sysconf"):  # Windows does not say: nothing is too much
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def weights(module: nn.Module) -> int:
    """Bytes of its parameters."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def check(needed: float, device: torch.device, what: str, remedy: str) -> None:
    """Refuses what needs more bytes than the device has at all.

    >>> check(2**70, torch.device("meta"), "many images", "take fewer")
    Traceback (most recent call last):
    mixmo.errors.UserError: many images need 1,180,591,620,717 GB, and there are 9,223,372,037 GB of memory; take fewer
    """
    there = total(device)
    if needed > there:
        said = amount(needed) if needed < math.inf else "more than can be counted"
        raise UserError(f"{what} need {said}, and there are {amount(there)} of memory; {remedy}")


def exhausted(error: BaseException) -> bool:
    """Whether this says that there is no memory left: Python's error, or PyTorch's of a CPU or of a GPU.

    >>> exhausted(RuntimeError("DefaultCPUAllocator: can't allocate memory")), exhausted(RuntimeError("shapes differ"))
    (True, False)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    said = r"(allocate|out of|not enough) memory|_ALLOC_FAILED|Caught MemoryError"  # the last by a DataLoader's worker
    return isinstance(error, RuntimeError) and re.search(said, str(error)) is not None


@contextmanager
def told(remedy: str) -> Iterator[None]:
    """That there is no memory left is said in one sentence."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not exhausted(error):
            raise
        raise UserError(f"there is not enough memory; {remedy}") from error


def amount(count: float) -> str:
    """Bytes in words.

    >>> amount(2**34), amount(3e16), amount(1.5e8)
    ('17 GB', '30,000,000 GB', '0.15 GB')
    """
    return f"{count / 1e9:,.0f} GB" if count >= 1e9 else f"{count / 1e9:.2g} GB"
