"""The memory of channels_last tensors, as the kernels read it."""

import torch
from torch import Tensor


def nhwc(x: Tensor) -> Tensor:
    """Return the memory (N, H, W, C) of a tensor (N, C, H, W), copied only if it is not channels_last."""
    dense = x.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).contiguous()
    return dense.view(-1).view(dense.shape)  # the strides of dimensions of size 1 too


def hwnc(x: Tensor) -> Tensor:
    """Return the same memory as (H, W, N, C): the pixels of many images at one place are the rows of a matrix."""
    return x.permute(1, 2, 0, 3)
