"""Where the Triton kernels can run, and whether they compute there what torch does."""

import functools
import importlib.util
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor

from mixmo.utils.errors import UserError, first_line

TRITON = importlib.util.find_spec("triton") is not None
TOLERANCE = 1e-2  # relative error: bfloat16 has 8 bits


def available(device: torch.device) -> bool:
    """Whether the Triton kernels can run on this device."""
    if device.type != "cuda" or not torch.version.cuda or not TRITON:
        return False
    return torch.cuda.get_device_properties(device).major >= 8  # which torch.compile can trace


def check_fp8(device: torch.device) -> None:
    """Raise an error if the kernels cannot compute in fp8 on this device."""
    if not (available(device) and torch.cuda.get_device_capability(device) >= (8, 9)):
        needed = "Triton and an NVIDIA GPU of compute capability 8.9 or higher (Ada, Hopper or newer)"
        raise UserError(f"precision = fp8 needs {needed}; device {device} here has not; take precision = bf16")


@functools.cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def agree(pairs: Iterable[tuple[Tensor, Tensor]], what: str) -> bool:
    """Whether what was found is what was expected, up to rounding; else warn."""
    for found, expected in pairs:
        if not (found - expected).float().norm() <= TOLERANCE * expected.float().norm():  # NaN is neither
            return failed(what, ValueError("its result differs from torch's"))
    return True


def failed(what: str, error: Exception) -> bool:
    """Warn that torch computes something instead of a kernel; return False."""
    reason = f"{type(error).__name__}: {first_line(error)}"
    warnings.warn(f"{what} is not used on this GPU ({reason}); torch computes it", RuntimeWarning, stacklevel=3)
    return False
