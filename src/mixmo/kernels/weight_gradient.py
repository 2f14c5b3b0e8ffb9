"""The gradient of a 3x3 convolution with respect to its weights.

    dw[k, u, v, c] = sum over n, i, j of x[n, s i + u - p, s j + v - p, c] dy[n, i, j, k]

with stride s and padding p, and x = 0 outside of the image. In memory, the three pixels v = 0, 1, 2 of a row are one
run of 3 C numbers that starts at (s j - p) C: the three horizontal taps are one matrix of 3 C rows, whose tiles need
not end where a tap does. A program computes such a tile for one u by some output channels, summing over blocks of
images and rows i at one column j after the other; so the zeros beyond both ends of a row are those that a tensor
descriptor (TMA on Hopper) reads out of bounds. The sum is split among programs, whose partial sums, in float32, are
added in a fixed order: the result is the same every time. All take the same number of steps, a constant as in the
forward pass; the last ones may reach beyond the last image, where there are zeros.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from mixmo.kernels.devices import multiprocessors
from mixmo.kernels.memory_format import hwnc, nhwc
from mixmo.kernels.shapes import Box, Shape, Tile, blocks, box, named, rounded, through_registers
from mixmo.kernels.tensor_cores import finished

WEIGHT_TILES = named(
    (
        Tile(128, 256, 64, 64, 8, 4),
        Tile(128, 128, 32, 64, 4, 3),
        Tile(256, 128, 0, 64, 8, 4),
        Tile(128, 128, 0, 64, 4, 4),
        Tile(64, 64, 0, 64, 4, 4),
    )
)
OVERHEAD = 20 * 64  # pixels whose products take as long as a program's start, its partial sum, and adding that up


@triton.jit(do_not_specialize=["channels", "tiles_m", "tiles_k", "stride", "padding"])
def weight_gradient_kernel(
    x,
    dy_a,
    dy_b,
    part_a,
    part_b,
    channels,
    tiles_m,
    tiles_k,
    stride,
    padding,
    BLOCKS_H: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEPS: tl.constexpr,
    IM: tl.constexpr,
    BH: tl.constexpr,
    BM: tl.constexpr,
    KA: tl.constexpr,
    KB: tl.constexpr,
    WAIT: tl.constexpr,
):
    """One program: BM of the 3 C rows by KA + KB output channels, for one u and one part of the sum."""
    pid = tl.program_id(0)
    k = pid % tiles_k * (KA + KB)
    m = pid // tiles_k % tiles_m * BM
    u = pid // (tiles_k * tiles_m) % 3
    split = pid // (tiles_k * tiles_m * 3)
    acc_a = tl.zeros((BM, KA), dtype=tl.float32)
    if KB > 0:
        acc_b = tl.zeros((BM, KB), dtype=tl.float32)
    for one in tl.range(0, STEPS):
        step = split * STEPS + one
        j = step % COLUMNS
        i = step // COLUMNS % BLOCKS_H * BH
        n = step // (COLUMNS * BLOCKS_H) * IM
        row = (j * stride - padding) * channels + m
        h = i * stride + u - padding
        if BH == 1:
            a = tl.reshape(x.load([h, n, row]), (IM, BM)).T
            acc_a = tl.dot(a, tl.reshape(dy_a.load([i, j, n, k]), (IM, KA)), acc_a)
            if KB > 0:
                acc_b = tl.dot(a, tl.reshape(dy_b.load([i, j, n, k + KA]), (IM, KB)), acc_b)
        else:
            a = tl.reshape(x.load([n, h, row]), (IM * BH, BM)).T
            acc_a = tl.dot(a, tl.reshape(dy_a.load([n, i, j, k]), (IM * BH, KA)), acc_a)
            if KB > 0:
                acc_b = tl.dot(a, tl.reshape(dy_b.load([n, i, j, k + KA]), (IM * BH, KB)), acc_b)
        if WAIT:
            if KB > 0:
                acc_b = finished(acc_b)
            else:
                acc_a = finished(acc_a)
    part_a.store([split * 3 + u, m, k], tl.reshape(acc_a, (1, BM, KA)))
    if KB > 0:
        part_b.store([split * 3 + u, m, k + KA], tl.reshape(acc_b, (1, BM, KB)))


@triton.jit(do_not_specialize=["splits"])
def sum_kernel(partial, dw, rows, outputs, splits, BLOCK: tl.constexpr):
    """Add the partial sums (splits, 9 C, K) in order and transpose: dw (K, 9 C)."""
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = (r < rows) & (k < outputs)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    part = partial + r * outputs + k
    for _ in tl.range(0, splits, loop_unroll_factor=4):  # so that several loads are under way
        acc += tl.load(part, mask=there, other=0.0)
        part += rows * outputs
    tl.store(dw + k * rows + r, acc.to(dw.dtype.element_ty), mask=there)


def weight_gradient_box(shape: Shape, tile: Tile) -> Box:
    if tile.images or shape.stride > 1:
        return tile.depth, 1, 1
    return box(tile.depth, shape.n, shape.out_h, 1)


def weight_gradient_work(shape: Shape, tile: Tile) -> int:
    """Multiply-adds with this tile, those of padded blocks included."""
    images, rows, _ = weight_gradient_box(shape, tile)
    pixels = rounded(shape.n, images) * rounded(shape.out_h, rows) * shape.out_w
    return 3 * pixels * rounded(3 * shape.c, tile.rows) * rounded(shape.k, tile.width)


def steps_each(total: int, tiles: int, at_once: int, overhead: int) -> int:
    """Return how many of the steps of a tile's sum each program takes, so that all of them end soonest.

    >>> steps_each(4096, 6, 132, 20)  # 22 parts: one wave of programs
    187
    >>> steps_each(256, 96, 132, 20)  # 4 parts: three waves; one wave would leave 36 multiprocessors idle
    64
    """

    def end(steps: int) -> int:
        return blocks(tiles * blocks(total, steps), at_once) * (steps + overhead)

    return min((blocks(total, max(1, waves * at_once // tiles)) for waves in (1, 2, 3, 4)), key=end)


def weight_gradient(x: Tensor, dy: Tensor, stride: int, padding: int, tile: Tile) -> Tensor:
    """Return the gradient by the weights (K, C, 3, 3), in channels_last."""
    n, c, h, w = x.shape
    shape = Shape(n, c, h, w, dy.shape[1], stride, padding)
    images, rows, _ = weight_gradient_box(shape, tile)
    blocks_h = blocks(shape.out_h, rows)
    total = blocks(n, images) * blocks_h * shape.out_w
    tiles_m, tiles_k = blocks(3 * c, tile.rows), blocks(shape.k, tile.width)
    at_once = multiprocessors(x.device) * (2 if tile.warps == 4 else 1)
    steps = steps_each(total, 3 * tiles_m * tiles_k, at_once, OVERHEAD // tile.depth)
    splits = blocks(total, steps)
    partial = torch.empty(splits * 3, 3 * c, shape.k, dtype=torch.float32, device=x.device)
    dw = torch.empty(shape.k, 3, 3, c, dtype=x.dtype, device=x.device)
    x_rows, dy_nhwc, boxes = nhwc(x).view(n, h, w * c), nhwc(dy), ([images, rows], [images, rows, 1])
    if rows == 1:
        x_rows, dy_nhwc, boxes = x_rows.transpose(0, 1), hwnc(dy_nhwc), ([1, images], [1, 1, images])
    weight_gradient_kernel[(splits * 3 * tiles_m * tiles_k,)](
        TensorDescriptor.from_tensor(x_rows, [*boxes[0], tile.rows]),
        TensorDescriptor.from_tensor(dy_nhwc, [*boxes[1], tile.columns]),
        TensorDescriptor.from_tensor(dy_nhwc, [*boxes[1], tile.more or 16]),
        TensorDescriptor.from_tensor(partial, [1, tile.rows, tile.columns]),
        TensorDescriptor.from_tensor(partial, [1, tile.rows, tile.more or 16]),
        c,
        tiles_m,
        tiles_k,
        stride,
        padding,
        BLOCKS_H=blocks_h,
        COLUMNS=shape.out_w,
        STEPS=steps,
        IM=images,
        BH=rows,
        BM=tile.rows,
        KA=tile.columns,
        KB=tile.more,
        WAIT=through_registers((images, rows, 1)) and not x.is_cpu,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    sum_kernel[(blocks(9 * c, 32), blocks(shape.k, 32))](partial, dw, 9 * c, shape.k, splits, BLOCK=32, num_warps=4)
    return dw.permute(0, 3, 1, 2)
