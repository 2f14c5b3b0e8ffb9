"""The gradient of a 3x3 convolution with respect to its input.

    dx[n, h, w, c] = sum over u, v, k of dy[n, (h + p - u) / s, (w + p - v) / s, k] w[k, u, v, c]

over the taps (u, v) for which the divisions by the stride s leave no rest, with dy = 0 outside. These taps are the same
for all pixels of one class, h mod s and w mod s. For each class, a launch computes the pixels h = s i + r, w = s j + q:
a stride-1 convolution of dy with some of the taps, the last first. In fp8, dx[..., c] is multiplied by a scale of
w[..., c], and is bfloat16; the tensor cores then want the weights as w[c, u, v, k]. The number of steps is a constant,
as in the forward pass.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from mixmo.kernels.memory_format import hwnc, nhwc
from mixmo.kernels.scales import scales
from mixmo.kernels.shapes import Box, Shape, Tile, blocks, box, named, rounded

TILES = named(
    (
        Tile(256, 128, 32, 32, 8, 6),
        Tile(256, 128, 32, 64, 8, 4),
        Tile(128, 256, 64, 64, 8, 4),
        Tile(128, 128, 32, 32, 4, 5),
        Tile(128, 128, 32, 64, 4, 3),
        Tile(256, 128, 0, 64, 8, 4),
        Tile(128, 128, 0, 64, 4, 4),
        Tile(128, 64, 0, 64, 4, 4),
    )
)


@triton.jit(
    do_not_specialize=["inputs", "tiles_h", "tiles_w", "tiles_c", "stride", "start_h", "start_w", "first_u", "first_v"]
)
def input_gradient_kernel(
    dy,
    w_a,
    w_b,
    dx_a,
    dx_b,
    scale,
    inputs,
    tiles_h,
    tiles_w,
    tiles_c,
    stride,
    start_h,
    start_w,
    first_u,
    first_v,
    TAPS_H: tl.constexpr,
    TAPS_W: tl.constexpr,
    STEPS: tl.constexpr,
    IM: tl.constexpr,
    BH: tl.constexpr,
    BW: tl.constexpr,
    BK: tl.constexpr,
    CA: tl.constexpr,
    CB: tl.constexpr,
    SCALED: tl.constexpr,
):
    """One program: a box of IM x BH x BW pixels of one class by CA + CB input channels."""
    pid = tl.program_id(0)
    c = pid % tiles_c * (CA + CB)
    tile = pid // tiles_c
    j = tile % tiles_w * BW
    i = tile // tiles_w % tiles_h * BH
    n = tile // (tiles_w * tiles_h) * IM
    acc_a = tl.zeros((BH * BW * IM, CA), dtype=tl.float32)
    if CB > 0:
        acc_b = tl.zeros((BH * BW * IM, CB), dtype=tl.float32)
    for step in tl.range(0, TAPS_H * TAPS_W * STEPS):
        tap = step // STEPS
        k = step % STEPS * BK
        up = tap // TAPS_W
        left = tap % TAPS_W
        uv = (first_u + stride * up) * 3 + first_v + stride * left
        a = tl.reshape(dy.load([i + start_h - up, j + start_w - left, n, k]), (BH * BW * IM, BK))
        if SCALED:
            acc_a = tl.dot(a, tl.reshape(w_a.load([c, uv, k]), (CA, BK)).T, acc_a)
            if CB > 0:
                acc_b = tl.dot(a, tl.reshape(w_b.load([c + CA, uv, k]), (CB, BK)).T, acc_b)
        else:
            acc_a = tl.dot(a, tl.reshape(w_a.load([k, uv, c]), (BK, CA)), acc_a)
            if CB > 0:
                acc_b = tl.dot(a, tl.reshape(w_b.load([k, uv, c + CA]), (BK, CB)), acc_b)
    if SCALED:
        acc_a *= scales(scale, c, inputs, CA)
        if CB > 0:
            acc_b *= scales(scale, c + CA, inputs, CB)
    dx_a.store([i, j, n, c], tl.reshape(acc_a.to(dx_a.dtype), (BH, BW, IM, CA)))
    if CB > 0:
        dx_b.store([i, j, n, c + CA], tl.reshape(acc_b.to(dx_b.dtype), (BH, BW, IM, CB)))


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
    n, k = dy.shape[:2]
    c, (h, w) = weight.shape[1 if scale is None else 0], size
    dx = torch.empty(n, h, w, c, dtype=dy.dtype if scale is None else torch.bfloat16, device=dy.device)
    dy_nhwc, weights = nhwc(dy), nhwc(weight).view(weight.shape[0], 9, weight.shape[1])
    for r in range(min(stride, h)):
        for q in range(min(stride, w)):
            part = dx[:, r::stride, q::stride]
            first_u, first_v = (r + padding) % stride, (q + padding) % stride
            images, rows, columns = input_gradient_box(tile, *part.shape[:3])
            pixels, width, more = [rows, columns, images], tile.columns, tile.more or 16
            weight_boxes = [[tile.depth, 1, side] if scale is None else [side, 1, tile.depth] for side in (width, more)]
            tiles = blocks(part.shape[1], rows), blocks(part.shape[2], columns), blocks(c, tile.width)
            input_gradient_kernel[(blocks(n, images) * tiles[0] * tiles[1] * tiles[2],)](
                TensorDescriptor.from_tensor(hwnc(dy_nhwc), [*pixels, tile.depth]),
                *(TensorDescriptor.from_tensor(weights, one) for one in weight_boxes),
                TensorDescriptor.from_tensor(hwnc(part), [*pixels, width]),
                TensorDescriptor.from_tensor(hwnc(part), [*pixels, more]),
                scale,
                c,
                *tiles,
                stride,
                (r + padding) // stride,
                (q + padding) // stride,
                first_u,
                first_v,
                TAPS_H=len(range(first_u, 3, stride)),
                TAPS_W=len(range(first_v, 3, stride)),
                STEPS=blocks(k, tile.depth),
                IM=images,
                BH=rows,
                BW=columns,
                BK=tile.depth,
                CA=tile.columns,
                CB=tile.more,
                SCALED=scale is not None,
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
    return dx.permute(0, 3, 1, 2)
