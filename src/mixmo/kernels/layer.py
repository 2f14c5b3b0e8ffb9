"""A 3x3 convolution layer whose kernels were chosen for the shape of its training batches."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mixmo.kernels.fp8 import Convolution, conv3x3_fp8
from mixmo.kernels.ops import conv3x3
from mixmo.kernels.quantisation import quantised_input, quantised_weights
from mixmo.kernels.shapes import Shape


class Kernels(NamedTuple):
    """What computes each direction: "cudnn", or the name of a tile."""

    forward: str
    input: str
    weight: str


class Conv3x3(nn.Conv2d):
    """nn.Conv2d whose training batches of one shape, in half precision, are computed by the chosen kernels."""

    shape: Shape
    dtype: torch.dtype
    kernels: Kernels

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or x.shape != self.shape.input:
            return super().forward(x)
        return self.convolve(x.to(self.dtype))

    def convolve(self, x: Tensor) -> Tensor:
        weight, how = self.weight.to(self.dtype), (self.shape.stride, self.shape.padding)
        y: Tensor = conv3x3(x, weight, *how, *self.kernels)
        return y


class Conv3x3FP8(Conv3x3):
    """The same in fp8; all other batches, and predictions, are computed as by nn.Conv2d.

    Attributes:
        maximum: max |dy| of the step before, which scales the gradient. It is neither a parameter nor a buffer, so that
            a saved network does not show how it was trained. `Maxima` sets it.
    """

    maximum: Tensor

    def convolve(self, x: Tensor) -> Tensor:
        how = (self.shape.stride, self.shape.padding)
        y: Tensor = Convolution.apply(x, self.weight, self.maximum, *how, *self.kernels)  # type: ignore[no-untyped-call]
        return y


class FrozenConv3x3FP8(nn.Module):
    """A 3x3 convolution in fp8 for predictions: its weights are stored in e4m3, with a scale for each output channel.

    `kernel` is "cudnn" (torch's convolution of the dequantised operands), or the name of a tile.
    """

    weight: Tensor
    scale: Tensor

    def __init__(self, layer: nn.Conv2d, kernel: str) -> None:
        super().__init__()
        self.stride, self.padding, self.kernel = layer.stride[0], int(layer.padding[0]), kernel
        weight8, scale = quantised_weights(layer.weight.detach())
        self.register_buffer("weight", weight8)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = conv3x3_fp8(quantised_input(x), self.weight, self.scale, self.stride, self.padding, self.kernel)
        return y


def set_kernels(layer: nn.Conv2d, shape: Shape, dtype: torch.dtype, kernels: Kernels) -> None:
    """Let the layer compute training batches of this shape in `dtype` by these kernels; parameters keep their names."""
    layer.__class__ = Conv3x3
    vars(layer).update(shape=shape, dtype=dtype, kernels=kernels)


def set_fp8(layer: nn.Conv2d, shape: Shape, kernels: Kernels) -> None:
    """Let the layer compute training batches of this shape in fp8 by these kernels; parameters keep their names.

    The first scale is that of a maximum of 1: with it, e5m2 holds gradients from 2^-31 to 2.
    """
    layer.__class__ = Conv3x3FP8
    maximum = torch.ones((), device=layer.weight.device, requires_grad=True)
    vars(layer).update(shape=shape, dtype=torch.bfloat16, kernels=kernels, maximum=maximum)


def shape_of(layer: nn.Module, x: tuple[int, int, int, int]) -> Shape | None:
    """Return the shape of the layer's convolution on inputs of a size (N, C, H, W), if the kernels can compute it."""
    if not (type(layer) is nn.Conv2d or isinstance(layer, Conv3x3)):
        return None
    if layer.kernel_size != (3, 3) or layer.bias is not None:
        return None
    (stride, across), padding = layer.stride, layer.padding
    plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    if not plain or stride != across or padding not in ((0, 0), (1, 1)):
        return None
    shape = Shape(*x, layer.out_channels, stride, int(padding[0]))
    return shape if shape.supported else None
