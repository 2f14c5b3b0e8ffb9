"""Where tensors are created."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def on_cpu(function: Callable[P, R]) -> Callable[P, R]:
    """What the function creates without naming a device is on the CPU, where its random numbers are drawn.

    Without it, `torch.set_default_device("cuda")` would put half of what meets there on the GPU.

    >>> with torch.device("meta"):
    ...     on_cpu(lambda: torch.zeros(2).device)()
    device(type='cpu')
    """

    @wraps(function)
    def placed(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return placed
