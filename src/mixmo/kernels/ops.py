"""The convolution as torch operators: `torch.compile`, CUDA graphs, autocast, export and DDP see ordinary ones.

`kernel` names what computes a direction: "cudnn" (what torch takes, on any device), or a tile of the Triton kernel.
"""

from typing import Any

import torch
from torch import Tensor

CUDNN = "cudnn"


def compute(direction: str, kernel: str, x: Tensor, weight: Tensor, dy: Tensor, stride: int, padding: int) -> Tensor:
    """Compute one direction of a convolution, in channels_last; `forward` does not read dy."""
    if kernel == CUDNN:
        return by_torch(direction, x, weight, dy, stride, padding).contiguous(memory_format=torch.channels_last)
    from mixmo.kernels.directions import DIRECTIONS

    ours = DIRECTIONS[direction]
    with torch.cuda.device_of(x):  # Triton launches on the current one
        return ours.compute(x, weight, dy, stride, padding, ours.tiles[kernel])


def by_torch(direction: str, x: Tensor, weight: Tensor, dy: Tensor, stride: int, padding: int) -> Tensor:
    how = ([stride, stride], [padding, padding], [1, 1], False, [0, 0], 1)
    if direction == "forward":
        y: Tensor = torch.ops.aten.convolution(x, weight, None, *how)
        return y
    wanted = [direction == "input", direction == "weight", False]
    gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(dy, x, weight, None, *how, wanted)
    return gradients[wanted.index(True)]


@torch.library.custom_op("mixmo::conv3x3", mutates_args=())
def conv3x3(
    x: Tensor, weight: Tensor, stride: int, padding: int, forward: str, by_input: str, by_weight: str
) -> Tensor:
    """Return conv2d(x, weight), each direction by the kernel of this name."""
    return compute("forward", forward, x, weight, x, stride, padding)


@torch.library.custom_op("mixmo::conv3x3_input_gradient", mutates_args=())
def conv3x3_input_gradient(dy: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, kernel: str) -> Tensor:
    """Return the gradient by x."""
    return compute("input", kernel, x, weight, dy, stride, padding)


@torch.library.custom_op("mixmo::conv3x3_weight_gradient", mutates_args=())
def conv3x3_weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, kernel: str) -> Tensor:
    """Return the gradient by the weights."""
    return compute("weight", kernel, x, weight, dy, stride, padding)


@conv3x3.register_fake
def _(x: Tensor, weight: Tensor, stride: int, padding: int, forward: str, by_input: str, by_weight: str) -> Tensor:
    out_h, out_w = ((side + 2 * padding - 3) // stride + 1 for side in x.shape[2:])
    return _empty(x, (x.shape[0], weight.shape[0], out_h, out_w))


@conv3x3_input_gradient.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, kernel: str) -> Tensor:
    return _empty(x, x.shape)


@conv3x3_weight_gradient.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, kernel: str) -> Tensor:
    return _empty(weight, weight.shape)


def _empty(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, ctx.stride, ctx.padding, _, ctx.by_input, ctx.by_weight = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    how, (for_x, for_weight, *_) = (ctx.stride, ctx.padding), ctx.needs_input_grad
    dx = conv3x3_input_gradient(dy, x, weight, *how, ctx.by_input) if for_x else None
    dw = conv3x3_weight_gradient(dy, x, weight, *how, ctx.by_weight) if for_weight else None
    return dx, dw, None, None, None, None, None


conv3x3.register_autograd(_backward, setup_context=_keep)
