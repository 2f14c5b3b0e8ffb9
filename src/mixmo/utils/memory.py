"""Available memory, and the error when there is too little."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from mixmo.utils.errors import UserError

GROUP = Path("/sys/fs/cgroup")  # limits of a container


def free() -> int:
    """Return the free bytes of the host, or of its container."""
    unused = _physical()
    with suppress(OSError, ValueError, StopIteration):  # not Linux, or a group without a limit
        lines = Path("/proc/meminfo").read_text().splitlines()
        unused = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        unused = min(unused, int((GROUP / "memory.max").read_text()) - int((GROUP / "memory.current").read_text()))
    return unused


def total(device: torch.device) -> int:
    """Return the bytes of a GPU, or of the host or its container; the meta device has no limit."""
    if device.type == "meta":
        return sys.maxsize
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    with suppress(OSError, ValueError):
        return min(_physical(), int((GROUP / "memory.max").read_text()))
    return _physical()


def _physical() -> int:
    if not hasattr(os, "sysconf"):  # on Windows it is not known
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def exhausted(error: BaseException) -> bool:
    """Return whether an error of Python or PyTorch means that the memory of the host or of a GPU is exhausted.

    >>> exhausted(RuntimeError("DefaultCPUAllocator: can't allocate memory")), exhausted(RuntimeError("shapes differ"))
    (True, False)
    """
    words = r"(allocate|out of|not enough) memory|_ALLOC_FAILED|Caught MemoryError"  # the last by a DataLoader's worker
    by_words = isinstance(error, RuntimeError) and re.search(words, str(error)) is not None
    return by_words or isinstance(error, MemoryError | torch.OutOfMemoryError)


@contextmanager
def advised(remedy: str) -> Iterator[None]:
    """Replace the errors of exhausted memory by a UserError with this remedy."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not exhausted(error):
            raise
        raise UserError(f"there is not enough memory; {remedy}") from error


def amount(count: float) -> str:
    """Format a number of bytes.

    >>> amount(2**34), amount(3e16), amount(1.5e8)
    ('17 GB', '30,000,000 GB', '0.15 GB')
    """
    return f"{count / 1e9:,.0f} GB" if count >= 1e9 else f"{count / 1e9:.2g} GB"
