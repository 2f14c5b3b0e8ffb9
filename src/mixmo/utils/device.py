"""The default device."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def on_cpu(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that its default device is the CPU, whatever `torch.set_default_device` was given.

    Random numbers are drawn on the CPU there, and tensors on two devices could not be combined.

    >>> with torch.device("meta"):
    ...     on_cpu(lambda: torch.zeros(2).device)()
    device(type='cpu')
    """

    @wraps(function)
    def placed(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return placed
