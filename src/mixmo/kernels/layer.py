"""A 3x3 convolution layer whose kernels were chosen for the shape of its training batches."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mixmo.kernels.ops import conv3x3
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
        weight, how = self.weight.to(self.dtype), (self.shape.stride, self.shape.padding)
        y: Tensor = conv3x3(x.to(self.dtype), weight, *how, *self.kernels)
        return y


def set_kernels(layer: nn.Conv2d, shape: Shape, dtype: torch.dtype, kernels: Kernels) -> None:
    """Let the layer compute training batches of this shape in `dtype` by these kernels; parameters keep their names."""
    layer.__class__ = Conv3x3
    vars(layer).update(shape=shape, dtype=dtype, kernels=kernels)


def shape_of(layer: nn.Module, x: tuple[int, int, int, int]) -> Shape | None:
    """Return the shape of the layer's convolution on inputs of a size (N, C, H, W), if the kernels can compute it."""
    if type(layer) is not nn.Conv2d or layer.kernel_size != (3, 3) or layer.bias is not None:
        return None
    (stride, across), padding = layer.stride, layer.padding
    plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    if not plain or stride != across or padding not in ((0, 0), (1, 1)):
        return None
    shape = Shape(*x, layer.out_channels, stride, int(padding[0]))
    return shape if shape.supported else None
