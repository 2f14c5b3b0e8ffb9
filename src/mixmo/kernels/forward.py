"""The forward pass of a 3x3 convolution.

    y[n, i, j, k] = sum over u, v, c of x[n, s i + u - p, s j + v - p, c] w[k, u, v, c]

with stride s and padding p, and x = 0 outside of the image. A program computes a box of pixels by some output channels:
for each tap (u, v) and a few input channels, a matrix product of the shifted box of x with weights. The zeros outside
are those that a tensor descriptor (TMA on Hopper) reads out of bounds. With stride 2 the box is one pixel of many
images, so that it is dense all the same; with stride 1 both kinds of boxes are tried (`Tile.images`).

The number of steps is a constant: where a loop could also run zero times, ptxas lets each product of the tensor cores
wait for the one before (its warning C7515), which took 1.6 times as long.
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
FP8_TILES = named(
    (
        Tile(256, 128, 32, 32, 8, 6),
        Tile(256, 128, 32, 64, 8, 5),
        Tile(256, 128, 32, 128, 8, 4),
        Tile(128, 256, 64, 64, 8, 5),
        Tile(128, 256, 64, 128, 8, 3),
        Tile(128, 128, 32, 32, 4, 6),
        Tile(128, 128, 32, 64, 4, 4),
        Tile(256, 128, 0, 64, 8, 5),
        Tile(256, 128, 0, 128, 8, 4),
        Tile(128, 128, 0, 128, 4, 4),
        Tile(128, 64, 0, 64, 4, 5),
        Tile(128, 64, 0, 32, 4, 6),
    )
)


@triton.jit(do_not_specialize=["outputs", "tiles_h", "tiles_w", "tiles_k", "stride", "padding"])
def forward_kernel(
    x,
    w_a,
    w_b,
    y_a,
    y_b,
    scale,
    outputs,
    tiles_h,
    tiles_w,
    tiles_k,
    stride,
    padding,
    STEPS: tl.constexpr,
    IM: tl.constexpr,
    BH: tl.constexpr,
    BW: tl.constexpr,
    BC: tl.constexpr,
    KA: tl.constexpr,
    KB: tl.constexpr,
    SCALED: tl.constexpr,
):
    """One program: a box of IM x BH x BW pixels by KA + KB output channels."""
    pid = tl.program_id(0)
    k = pid % tiles_k * (KA + KB)
    tile = pid // tiles_k
    j = tile % tiles_w * BW
    i = tile // tiles_w % tiles_h * BH
    n = tile // (tiles_w * tiles_h) * IM
    acc_a = tl.zeros((BH * BW * IM, KA), dtype=tl.float32)
    if KB > 0:
        acc_b = tl.zeros((BH * BW * IM, KB), dtype=tl.float32)
    for step in tl.range(0, 9 * STEPS):
        tap = step // STEPS
        c = step % STEPS * BC
        a = tl.reshape(
            x.load([i * stride + tap // 3 - padding, j * stride + tap % 3 - padding, n, c]), (BH * BW * IM, BC)
        )
        acc_a = tl.dot(a, tl.reshape(w_a.load([k, tap, c]), (KA, BC)).T, acc_a)
        if KB > 0:
            acc_b = tl.dot(a, tl.reshape(w_b.load([k + KA, tap, c]), (KB, BC)).T, acc_b)
    if SCALED:
        acc_a *= scales(scale, k, outputs, KA)
        if KB > 0:
            acc_b *= scales(scale, k + KA, outputs, KB)
    y_a.store([i, j, n, k], tl.reshape(acc_a.to(y_a.dtype), (BH, BW, IM, KA)))
    if KB > 0:
        y_b.store([i, j, n, k + KA], tl.reshape(acc_b.to(y_b.dtype), (BH, BW, IM, KB)))


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
    images, rows, columns = forward_box(shape, tile)
    dtype = x.dtype if scale is None else torch.bfloat16
    y = torch.empty(shape.n, shape.out_h, shape.out_w, shape.k, dtype=dtype, device=x.device)
    w = nhwc(weight).view(shape.k, 9, shape.c)
    pixels, width, more = [rows, columns, images], tile.columns, tile.more or 16
    tiles = (
        blocks(shape.n, images),
        blocks(shape.out_h, rows),
        blocks(shape.out_w, columns),
        blocks(shape.k, tile.width),
    )
    forward_kernel[(tiles[0] * tiles[1] * tiles[2] * tiles[3],)](
        TensorDescriptor.from_tensor(hwnc(nhwc(x)), [*pixels, tile.depth]),
        TensorDescriptor.from_tensor(w, [width, 1, tile.depth]),
        TensorDescriptor.from_tensor(w, [more, 1, tile.depth]),
        TensorDescriptor.from_tensor(hwnc(y), [*pixels, width]),
        TensorDescriptor.from_tensor(hwnc(y), [*pixels, more]),
        scale,
        shape.k,
        *tiles[1:],
        stride,
        padding,
        STEPS=blocks(shape.c, tile.depth),
        IM=images,
        BH=rows,
        BW=columns,
        BC=tile.depth,
        KA=tile.columns,
        KB=tile.more,
        SCALED=scale is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y.permute(0, 3, 1, 2)
