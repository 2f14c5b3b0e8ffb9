"""The kernel of the forward pass and of the input gradient.

    y[n, i, j, k] = sum over a, b, c of x[n, s i + h + d a, s j + w + d b, c] W[k, u + t a, v + t b, c]

with some taps (a, b), and x = 0 outside of the image. A program computes a box of pixels by some output channels: for
each tap and a few input channels, a matrix product of the shifted box of x with weights. The zeros outside are those
that a tensor descriptor (TMA on Hopper) reads out of bounds.

The number of steps is a constant: where a loop could also run zero times, ptxas lets each product of the tensor cores
wait for the one before (its warning C7515), which took 1.6 times as long.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from mixmo.kernels.memory_format import hwnc
from mixmo.kernels.shapes import Box, Tile, blocks, named, through_registers
from mixmo.kernels.tensor_cores import finished

TILES = named(
    (
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
        Tile(128, 256, 64, 64, 8, 5),
        Tile(128, 256, 64, 128, 8, 3),
        Tile(128, 128, 32, 32, 4, 6),
        Tile(128, 128, 32, 64, 4, 4),
        Tile(128, 128, 32, 128, 4, 3),
        Tile(256, 128, 0, 64, 8, 5),
        Tile(256, 128, 0, 128, 8, 4),
        Tile(128, 128, 0, 128, 4, 4),
        Tile(128, 64, 0, 64, 4, 5),
        Tile(128, 64, 0, 32, 4, 6),
    )
)


class Taps(NamedTuple):
    """Which pixels and weights are multiplied: s, (h, w), d, (u, v), t, and the numbers of a and b."""

    stride: int
    start: tuple[int, int]
    direction: int  # 1 or -1
    first: tuple[int, int]
    step: int
    counts: tuple[int, int]


@triton.jit
def scales(scale, first, channels, COUNT: tl.constexpr):
    """Return those of COUNT channels from the first on, as a row."""
    channel = first + tl.arange(0, COUNT)
    return tl.load(scale + channel, mask=channel < channels, other=0.0)[None, :]


@triton.jit(
    do_not_specialize=[
        *("channels", "tiles_h", "tiles_w", "tiles_k", "stride", "start_h", "start_w", "first_u", "first_v", "tap_step")
    ]
)
def convolution_kernel(
    x,
    w_a,
    w_b,
    y_a,
    y_b,
    scale,
    channels,
    tiles_h,
    tiles_w,
    tiles_k,
    stride,
    start_h,
    start_w,
    first_u,
    first_v,
    tap_step,
    DIRECTION: tl.constexpr,
    TAPS_H: tl.constexpr,
    TAPS_W: tl.constexpr,
    STEPS: tl.constexpr,
    IM: tl.constexpr,
    BH: tl.constexpr,
    BW: tl.constexpr,
    BC: tl.constexpr,
    KA: tl.constexpr,
    KB: tl.constexpr,
    SUMMED_FIRST: tl.constexpr,
    SCALED: tl.constexpr,
    WAIT: tl.constexpr,
):
    """One program: a box of BH x BW pixels of IM images by KA + KB output channels."""
    pid = tl.program_id(0)
    k = pid % tiles_k * (KA + KB)
    tile = pid // tiles_k
    j = tile % tiles_w * BW
    i = tile // tiles_w % tiles_h * BH
    n = tile // (tiles_w * tiles_h) * IM
    acc_a = tl.zeros((BH * BW * IM, KA), dtype=tl.float32)
    if KB > 0:
        acc_b = tl.zeros((BH * BW * IM, KB), dtype=tl.float32)
    for step in tl.range(0, TAPS_H * TAPS_W * STEPS):
        c = step % STEPS * BC
        up = step // STEPS // TAPS_W
        left = step // STEPS % TAPS_W
        uv = (first_u + tap_step * up) * 3 + first_v + tap_step * left
        row = i * stride + start_h + DIRECTION * up
        column = j * stride + start_w + DIRECTION * left
        a = tl.reshape(x.load([row, column, n, c]), (BH * BW * IM, BC))
        if SUMMED_FIRST:
            acc_a = tl.dot(a, tl.reshape(w_a.load([c, uv, k]), (BC, KA)), acc_a)
            if KB > 0:
                acc_b = tl.dot(a, tl.reshape(w_b.load([c, uv, k + KA]), (BC, KB)), acc_b)
        else:
            acc_a = tl.dot(a, tl.reshape(w_a.load([k, uv, c]), (KA, BC)).T, acc_a)
            if KB > 0:
                acc_b = tl.dot(a, tl.reshape(w_b.load([k + KA, uv, c]), (KB, BC)).T, acc_b)
        if WAIT:
            if KB > 0:
                acc_b = finished(acc_b)
            else:
                acc_a = finished(acc_a)
    if SCALED:
        acc_a *= scales(scale, k, channels, KA)
        if KB > 0:
            acc_b *= scales(scale, k + KA, channels, KB)
    y_a.store([i, j, n, k], tl.reshape(acc_a.to(y_a.dtype), (BH, BW, IM, KA)))
    if KB > 0:
        y_b.store([i, j, n, k + KA], tl.reshape(acc_b.to(y_b.dtype), (BH, BW, IM, KB)))


def convolve(
    x: Tensor, weight: Tensor, y: Tensor, taps: Taps, box: Box, tile: Tile, scale: Tensor | None, summed_first: bool
) -> None:
    """Write y (N, h, w, K), which may have any strides, of x (N, H, W, C).

    Args:
        x: Dense memory.
        weight: (K, 9, C), or (C, 9, K) if `summed_first`.
        y: What is written.
        taps: Of the sum.
        box: Pixels that a program computes.
        tile: The sizes of its matrices.
        scale: Of each channel of y (K,), or None.
        summed_first: Whether the channels that are summed over come first in `weight`.
    """
    (n, h, w, k), c, (images, rows, columns) = y.shape, x.shape[3], box
    pixels, widths = [rows, columns, images], (tile.columns, tile.more or 16)
    tiles = blocks(h, rows), blocks(w, columns), blocks(k, tile.width)
    weight_boxes = [[tile.depth, 1, width] if summed_first else [width, 1, tile.depth] for width in widths]
    convolution_kernel[(blocks(n, images) * tiles[0] * tiles[1] * tiles[2],)](
        TensorDescriptor.from_tensor(hwnc(x), [*pixels, tile.depth]),
        *(TensorDescriptor.from_tensor(weight, one) for one in weight_boxes),
        *(TensorDescriptor.from_tensor(hwnc(y), [*pixels, width]) for width in widths),
        scale,
        k,
        *tiles,
        taps.stride,
        *taps.start,
        *taps.first,
        taps.step,
        DIRECTION=taps.direction,
        TAPS_H=taps.counts[0],
        TAPS_W=taps.counts[1],
        STEPS=blocks(c, tile.depth),
        IM=images,
        BH=rows,
        BW=columns,
        BC=tile.depth,
        KA=tile.columns,
        KB=tile.more,
        SUMMED_FIRST=summed_first,
        SCALED=scale is not None,
        WAIT=through_registers(box) and not x.is_cpu,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
