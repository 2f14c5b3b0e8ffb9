"""The gradient of a 3x3 convolution with respect to its input.

    dx[n, h, w, c] = sum over u, v, k of dy[n, (h + p - u) / s, (w + p - v) / s, k] w[k, u, v, c]

over the taps (u, v) for which the divisions by the stride s leave no rest, with dy = 0 outside. These taps are the same
for all pixels of one class, h mod s and w mod s. For each class, a launch computes the pixels h = s i + r, w = s j + q:
a stride-1 convolution of dy with some of the taps, the last first. In fp8, dx[..., c] is multiplied by a scale of
w[..., c], and is bfloat16; the tensor cores then want the weights as w[c, u, v, k].
"""

import torch
from torch import Tensor

from mixmo.kernels.convolution import Taps, convolve
from mixmo.kernels.memory_format import nhwc
from mixmo.kernels.shapes import Box, Shape, Tile, blocks, box, rounded


def input_gradient_box(tile: Tile, n: int, h: int, w: int) -> Box:
    return (tile.rows, 1, 1) if tile.images else box(tile.rows, n, h, w)


def input_gradient_work(shape: Shape, tile: Tile) -> int:
    """Multiply-adds with this tile, those of padded blocks included."""
    h, w = blocks(shape.h, shape.stride), blocks(shape.w, shape.stride)
    images, rows, columns = input_gradient_box(tile, shape.n, h, w)
    pixels = rounded(shape.n, images) * rounded(h, rows) * rounded(w, columns)
    return 9 * pixels * rounded(shape.c, tile.width) * rounded(shape.k, tile.depth)


def input_gradient(
    dy: Tensor,
    weight: Tensor,
    size: tuple[int, int],
    stride: int,
    padding: int,
    tile: Tile,
    scale: Tensor | None = None,
) -> Tensor:
    """Return the gradient by an input of this height and width, in channels_last.

    In fp8 the weights are (C, K, 3, 3), and the gradient is multiplied by the scale of each input channel (C,).
    """
    in_fp8, (h, w) = scale is not None, size
    dtype, c = (torch.bfloat16, weight.shape[0]) if in_fp8 else (dy.dtype, weight.shape[1])
    dx = torch.empty(dy.shape[0], h, w, c, dtype=dtype, device=dy.device)
    dy_nhwc, weights = nhwc(dy), nhwc(weight).view(weight.shape[0], 9, weight.shape[1])
    for r in range(min(stride, h)):
        for q in range(min(stride, w)):
            part = dx[:, r::stride, q::stride]
            first = (r + padding) % stride, (q + padding) % stride
            counts = len(range(first[0], 3, stride)), len(range(first[1], 3, stride))
            taps = Taps(1, ((r + padding) // stride, (q + padding) // stride), -1, first, stride, counts)
            pixels = input_gradient_box(tile, *part.shape[:3])
            convolve(dy_nhwc, weights, part, taps, pixels, tile, scale, summed_first=not in_fp8)
    return dx.permute(0, 3, 1, 2)
