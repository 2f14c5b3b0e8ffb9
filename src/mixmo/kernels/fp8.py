"""The convolution in fp8: forward and input gradient of quantised operands, the weight gradient in bfloat16.

    y = s_w conv(x8, w8)        dx = s_w' / s_dy conv_transposed(dy8, w8')        dw = conv_weight(bf16(x8), dy)

w8 has a scale for each output channel, w8' is a second copy, (C, K, 3, 3), with one for each input channel: each scale
multiplies a column of the result, and each operand has the channels that are summed over last in memory, as the tensor
cores want it. Only x8 is kept for the backward pass; a compiled step may compute it again instead.

`kernel` names what computes a product: "cudnn" (torch's convolution of the dequantised operands in float32, on any
device: the definition), or a tile of the Triton kernel.
"""

from typing import Any

import torch
from torch import Tensor

from mixmo.kernels.ops import CUDNN, by_torch, conv3x3_weight_gradient
from mixmo.kernels.quantisation import Operands, forward_operands, input_operands
from mixmo.kernels.shapes import Shape


def compute_fp8(direction: str, kernel: str, operands: Operands, shape: Shape) -> Tensor:
    """Compute the "forward" or "input" direction in bfloat16, in channels_last."""
    if kernel == CUDNN:
        exact = reference(direction, operands, shape, torch.float32)
        return exact.to(torch.bfloat16, memory_format=torch.channels_last)
    from mixmo.kernels.directions import FP8

    ours = FP8[direction]
    with torch.cuda.device_of(operands.a):  # Triton launches on the current one
        return ours.compute(operands, shape, ours.tiles[kernel])


def reference(direction: str, operands: Operands, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Compute a direction by torch's convolution of the dequantised operands in this type."""
    a, weight = operands.a.to(dtype), operands.weight.to(dtype)
    if direction == "forward":
        result = by_torch(direction, a, weight, a, shape.stride, shape.padding)
    else:
        x = torch.empty(shape.input, dtype=dtype, device=a.device).to(memory_format=torch.channels_last)  # not read
        result = by_torch(direction, x, weight.transpose(0, 1), a, shape.stride, shape.padding)
    return result * operands.scale.to(dtype)[:, None, None]


@torch.library.custom_op("mixmo::conv3x3_fp8", mutates_args=())
def conv3x3_fp8(x: Tensor, weight: Tensor, scale: Tensor, stride: int, padding: int, kernel: str) -> Tensor:
    """Return conv2d(x, weight) times the scale of each output channel."""
    shape = Shape.of(x, weight, stride, padding)
    return compute_fp8("forward", kernel, Operands(x, weight, scale), shape)


@torch.library.custom_op("mixmo::conv3x3_fp8_input_gradient", mutates_args=())
def conv3x3_fp8_input_gradient(
    dy: Tensor, weight: Tensor, scale: Tensor, h: int, w: int, stride: int, padding: int, kernel: str
) -> Tensor:
    """Return the gradient by an input of h x w pixels, from weights (C, K, 3, 3), times the scale of each channel."""
    shape = Shape(dy.shape[0], weight.shape[0], h, w, dy.shape[1], stride, padding)
    return compute_fp8("input", kernel, Operands(dy, weight, scale), shape)


@conv3x3_fp8.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor, stride: int, padding: int, kernel: str) -> Tensor:
    return _empty(x, Shape.of(x, weight, stride, padding).output)


@conv3x3_fp8_input_gradient.register_fake
def _(dy: Tensor, weight: Tensor, scale: Tensor, h: int, w: int, stride: int, padding: int, kernel: str) -> Tensor:
    return _empty(dy, (dy.shape[0], weight.shape[0], h, w))


def _empty(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=like.device, memory_format=torch.channels_last)


class Convolution(torch.autograd.Function):
    """The convolution of x and float32 weights in fp8.

    `maximum` is max |dy| of the step before, a scalar. Its "gradient" is that of this step: so the backward pass gives
    it back without changing a tensor, as `torch.compile` wants it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        maximum: Tensor,
        stride: int,
        padding: int,
        forward: str,
        by_input: str,
        by_weight: str,
    ) -> Tensor:
        x8, weight8, scale = forward_operands(x, weight)
        ctx.save_for_backward(x8, weight, maximum)
        ctx.stride, ctx.padding, ctx.by_input, ctx.by_weight = stride, padding, by_input, by_weight
        y: Tensor = conv3x3_fp8(x8, weight8, scale, stride, padding, forward)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x8, weight, maximum = ctx.saved_tensors
        how, (h, w) = (ctx.stride, ctx.padding), x8.shape[2:]
        dx = None
        if ctx.needs_input_grad[0]:
            dx = conv3x3_fp8_input_gradient(*input_operands(dy, weight, maximum), h, w, *how, ctx.by_input)
        like = torch.empty_like(weight, dtype=dy.dtype)  # not read
        dw = conv3x3_weight_gradient(dy, x8.to(dy.dtype), like, *how, ctx.by_weight).to(weight.dtype)
        return dx, dw, dy.abs().amax().float(), None, None, None, None, None
