"""Check tensors given by users."""

import torch
from torch import Tensor

from mixmo.utils.errors import UserError


def check_dense(name: str, value: object) -> None:
    """Check that a value is an ordinary tensor of real numbers: not sparse, nested, quantised or complex.

    >>> check_dense("images", torch.zeros(2, 3).to_sparse())
    Traceback (most recent call last):
    mixmo.utils.errors.UserError: images are a torch.sparse_coo tensor of torch.float32; give a dense, real one
    """
    if not isinstance(value, Tensor):
        raise UserError(f"{name} are a {type(value).__name__}; give a tensor")
    if value.layout != torch.strided or value.is_nested or value.is_quantized or value.is_complex():
        kind = "nested" if value.is_nested else value.layout
        raise UserError(f"{name} are a {kind} tensor of {value.dtype}; give a dense, real one")


def check_filled(name: str, value: object) -> None:
    """Check as `check_dense`, and that the tensor has values: none has on the meta device."""
    check_dense(name, value)
    if isinstance(value, Tensor) and value.is_meta:
        raise UserError(f"{name} are on the meta device, without values; give them on a CPU or GPU")
