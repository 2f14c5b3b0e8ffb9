"""The forward pass of a 3x3 convolution.

    y[n, i, j, k] = sum over u, v, c of x[n, s i + u - p, s j + v - p, c] w[k, u, v, c]

with stride s and padding p, and x = 0 outside of the image. With stride 2 a box is one pixel of many images, so that it
is dense all the same; with stride 1 both kinds of boxes are tried (`Tile.images`).
"""

import torch
from torch import Tensor

from mixmo.kernels.convolution import Taps, convolve
from mixmo.kernels.memory_format import nhwc
from mixmo.kernels.shapes import Box, Shape, Tile, box, rounded


def forward_box(shape: Shape, tile: Tile) -> Box:
    if tile.images or shape.stride > 1:
        return tile.rows, 1, 1
    return box(tile.rows, shape.n, shape.out_h, shape.out_w)


def forward_work(shape: Shape, tile: Tile) -> int:
    """Multiply-adds with this tile, those of padded blocks included."""
    images, rows, columns = forward_box(shape, tile)
    pixels = rounded(shape.n, images) * rounded(shape.out_h, rows) * rounded(shape.out_w, columns)
    return 9 * pixels * rounded(shape.k, tile.width) * rounded(shape.c, tile.depth)


def forward(x: Tensor, weight: Tensor, stride: int, padding: int, tile: Tile, scale: Tensor | None = None) -> Tensor:
    """Return conv2d(x, weight), in channels_last; of fp8 operands times the scale of each output channel (K,)."""
    shape = Shape.of(x, weight, stride, padding)
    dtype = x.dtype if scale is None else torch.bfloat16
    y = torch.empty(shape.n, shape.out_h, shape.out_w, shape.k, dtype=dtype, device=x.device)
    taps = Taps(stride, (-padding, -padding), 1, (0, 0), 1, (3, 3))
    w = nhwc(weight).view(shape.k, 9, shape.c)
    convolve(nhwc(x), w, y, taps, forward_box(shape, tile), tile, scale, summed_first=False)
    return y.permute(0, 3, 1, 2)
