"""The three convolutions of a layer in training: forward, gradient of the input, gradient of the weights."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from mixmo.kernels.convolution import FP8_TILES, TILES
from mixmo.kernels.forward import forward, forward_work
from mixmo.kernels.input_gradient import input_gradient, input_gradient_work
from mixmo.kernels.quantisation import Operands
from mixmo.kernels.shapes import Shape, Tile
from mixmo.kernels.weight_gradient import WEIGHT_TILES, weight_gradient, weight_gradient_work


class Kernel(NamedTuple):
    """The kernel of one direction."""

    tiles: Mapping[str, Tile]
    work: Callable[[Shape, Tile], int]  # multiply-adds with a tile, those of padded blocks included
    compute: Callable[[Tensor, Tensor, Tensor, int, int, Tile], Tensor]  # of x, weight, dy, stride, padding


DIRECTIONS: dict[str, Kernel] = {
    "forward": Kernel(TILES, forward_work, lambda x, weight, dy, s, p, tile: forward(x, weight, s, p, tile)),
    "input": Kernel(
        TILES,
        input_gradient_work,
        lambda x, weight, dy, s, p, tile: input_gradient(dy, weight, (x.shape[2], x.shape[3]), s, p, tile),
    ),
    "weight": Kernel(
        WEIGHT_TILES, weight_gradient_work, lambda x, weight, dy, s, p, tile: weight_gradient(x, dy, s, p, tile)
    ),
}


class KernelFP8(NamedTuple):
    """The kernel of one direction in fp8."""

    tiles: Mapping[str, Tile]
    work: Callable[[Shape, Tile], int]
    compute: Callable[[Operands, Shape, Tile], Tensor]


FP8: dict[str, KernelFP8] = {
    "forward": KernelFP8(
        FP8_TILES,
        forward_work,
        lambda of, shape, tile: forward(of.a, of.weight, shape.stride, shape.padding, tile, of.scale),
    ),
    "input": KernelFP8(
        FP8_TILES,
        input_gradient_work,
        lambda of, shape, tile: input_gradient(
            of.a, of.weight, (shape.h, shape.w), shape.stride, shape.padding, tile, of.scale
        ),
    ),
}
