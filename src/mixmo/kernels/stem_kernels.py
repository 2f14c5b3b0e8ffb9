"""The kernels of mixed encodings (`stem`) and of the gradients by their weights.

    y[pixel, k] = M sum_m a_m[pixel] (b_m[k] + sum over u, r of x_m[start(pixel) + u H + r] w_m[u, r, k])

    dw_m[u, r, k] = sum over pixels of x_m[start(pixel) + u H + r] (M a_m[pixel] dy[pixel, k])

The images are padded (`stem_layout`): start is where a pixel's window begins, H the length of a row; r counts the
numbers of the window's pixels in this row, and some behind it whose weights are zero. Neighbouring windows overlap, so
that most reads hit a cache. As in `convolution`, the numbers of steps are constants. The sum of dw is split among
programs, whose partial sums are added in a fixed order: the result is the same every time.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixmo.kernels.devices import multiprocessors
from mixmo.kernels.shapes import blocks
from mixmo.kernels.stem_layout import CHANNELS, output_block, power_of_two
from mixmo.kernels.weight_gradient import steps_each

OVERHEAD = 32  # steps that take as long as a program's start, its partial sum, and adding that up


class StemTile(NamedTuple):
    """What one program computes at a time."""

    pixels: int
    warps: int
    stages: int
    words: int  # numbers of an image per load, at most

    def __str__(self) -> str:
        return f"{self.pixels} w{self.warps} s{self.stages} v{self.words}"


def forward_tile(k: int) -> StemTile:
    return StemTile(128, 8 if output_block(k) == 128 else 4, 3, 8)


def weight_gradient_tile(rows: int, k: int) -> StemTile:
    large = row_block(rows) * output_block(k) >= 128 * 128
    return StemTile(64, 8, 2, 8) if large else StemTile(128, 4, 2, 8)


def row_block(rows: int) -> int:
    """Return how many of the weights of an output channel a program computes."""
    return min(256, max(64, power_of_two(rows)))


@triton.jit
def starts(pixel, stride_h, stride_w, row, image, OUT_H: tl.constexpr, OUT_W: tl.constexpr):
    """Return where the windows of these pixels begin in the images of a member."""
    n = pixel // (OUT_H * OUT_W)
    i = pixel // OUT_W % OUT_H
    j = pixel % OUT_W
    return n.to(tl.int64) * image + i * stride_h * row + j * stride_w


@triton.jit
def shares(coefficients, member, pixel, pixels, samples, OUT: tl.constexpr, MAPS: tl.constexpr):
    """Return the coefficients of a member at these pixels."""
    if MAPS:
        return tl.load(coefficients + member * pixels + pixel)
    return tl.load(coefficients + member * samples + pixel // OUT)


@triton.jit(do_not_specialize=["pixels", "samples", "stride_h", "stride_w"])
def stem_kernel(
    images,
    weights,
    biases,
    coefficients,
    y,
    pixels,
    samples,
    stride_h,
    stride_w,
    row,
    image,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    RUN: tl.constexpr,
    OUT_H: tl.constexpr,
    OUT_W: tl.constexpr,
    K: tl.constexpr,
    TILES_K: tl.constexpr,
    BP: tl.constexpr,
    BK: tl.constexpr,
    MAPS: tl.constexpr,
    BIASED: tl.constexpr,
    WORDS: tl.constexpr,
):
    """One program: BP pixels by BK output channels."""
    pid = tl.program_id(0)
    k = pid % TILES_K * BK + tl.arange(0, BK)
    pixel = pid // TILES_K * BP + tl.arange(0, BP)
    there = tl.minimum(pixel, pixels - 1)  # the last one again, instead of what is beyond
    start = starts(there, stride_h, stride_w, row, image, OUT_H, OUT_W)
    r = tl.arange(0, RUN)
    offset = tl.max_contiguous(tl.multiple_of(start[:, None] + r[None, :], (1, WORDS)), (1, WORDS))
    mixed = tl.zeros((BP, BK), dtype=tl.float32)
    for m in tl.static_range(M):
        x = images + tl.cast(samples, tl.int64) * image * m + offset
        w = weights + m * ROWS * RUN * TILES_K * BK + r[:, None] * (TILES_K * BK) + k[None, :]
        acc = tl.zeros((BP, BK), dtype=tl.float32)
        for u in tl.range(0, ROWS):
            acc = tl.dot(tl.load(x + u * row), tl.load(w + u * (RUN * TILES_K * BK)), acc)
        if BIASED:
            acc += tl.load(biases + m * K + k, mask=k < K, other=0.0)[None, :]
        mixed += (M * shares(coefficients, m, there, pixels, samples, OUT_H * OUT_W, MAPS))[:, None] * acc
    to = y + pixel.to(tl.int64)[:, None] * K + k[None, :]
    tl.store(to, mixed.to(y.dtype.element_ty), mask=(pixel < pixels)[:, None] & (k < K)[None, :])


@triton.jit(do_not_specialize=["pixels", "samples", "stride_h", "stride_w"])
def stem_weight_gradient_kernel(
    dy,
    images,
    coefficients,
    partial,
    pixels,
    samples,
    stride_h,
    stride_w,
    row,
    image,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    RUN: tl.constexpr,
    OUT_H: tl.constexpr,
    OUT_W: tl.constexpr,
    K: tl.constexpr,
    TILES_Q: tl.constexpr,
    TILES_K: tl.constexpr,
    STEPS: tl.constexpr,
    BP: tl.constexpr,
    BQ: tl.constexpr,
    BK: tl.constexpr,
    MAPS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """One program: BQ weights of BK output channels of a member, for one part of the pixels."""
    pid = tl.program_id(0)
    m = pid % M  # the members read the same dy, one after the other
    k = pid // M % TILES_K * BK + tl.arange(0, BK)
    q = pid // (M * TILES_K) % TILES_Q * BQ + tl.arange(0, BQ)
    split = pid // (M * TILES_K * TILES_Q)
    u = q // RUN
    x = images + tl.cast(samples, tl.int64) * image * m
    run = tl.minimum(u, ROWS - 1) * row + q % RUN  # beyond the last row, that one again: nothing reads the result
    acc = tl.zeros((BQ, BK), dtype=tl.float32)
    for step in tl.range(0, STEPS):
        pixel = (split * STEPS + step) * BP + tl.arange(0, BP)
        there = tl.minimum(pixel, pixels - 1)
        start = starts(there, stride_h, stride_w, row, image, OUT_H, OUT_W)
        offset = tl.max_contiguous(tl.multiple_of(start[:, None] + run[None, :], (1, WORDS)), (1, WORDS))
        a = tl.load(x + offset)
        share = tl.where(pixel < pixels, M * shares(coefficients, m, there, pixels, samples, OUT_H * OUT_W, MAPS), 0.0)
        b = tl.load(dy + there.to(tl.int64)[:, None] * K + k[None, :], mask=(k < K)[None, :], other=0.0)
        acc = tl.dot(a.T, (share[:, None] * b).to(a.dtype), acc)
    to = partial + (split * M + m).to(tl.int64) * (TILES_Q * BQ * TILES_K * BK)
    tl.store(to + q[:, None] * (TILES_K * BK) + k[None, :], acc)


def forward(
    images: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    coefficients: Tensor,
    y: Tensor,
    stride: Sequence[int],
    tile: StemTile,
) -> None:
    """Write y (N, h, w, K) of images (M, N, H, W, 4), weights (M, R, run, K rounded up) and biases (M, K)."""
    (n, h, w, k), (members, rows, run, padded_k) = y.shape, weights.shape
    block = output_block(k)
    stem_kernel[(blocks(n * h * w, tile.pixels) * (padded_k // block),)](
        images,
        weights,
        biases,
        coefficients,
        y,
        *geometry(images, n * h * w, stride),
        M=members,
        ROWS=rows,
        RUN=run,
        OUT_H=h,
        OUT_W=w,
        K=k,
        TILES_K=padded_k // block,
        BP=tile.pixels,
        BK=block,
        MAPS=coefficients.numel() > members * n,
        BIASED=biases is not None,
        WORDS=words(stride, tile),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def weight_gradient(
    dy: Tensor, images: Tensor, rows: int, run: int, coefficients: Tensor, stride: Sequence[int], tile: StemTile
) -> Tensor:
    """Return the gradient by the weights (M, R, run, K rounded up) from dy (N, h, w, K), in float32."""
    (n, h, w, k), members = dy.shape, len(images)
    block_q, block_k = row_block(rows * run), output_block(k)
    tiles_q, tiles_k = blocks(rows * run, block_q), blocks(k, block_k)
    programs, total = members * tiles_q * tiles_k, blocks(n * h * w, tile.pixels)
    steps = steps_each(total, programs, 2 * multiprocessors(images.device), OVERHEAD)
    splits = blocks(total, steps)
    sizes = splits, members, tiles_q * block_q, tiles_k * block_k
    partial = torch.empty(sizes, dtype=torch.float32, device=images.device)
    stem_weight_gradient_kernel[(splits * programs,)](
        dy,
        images,
        coefficients,
        partial,
        *geometry(images, n * h * w, stride),
        M=members,
        ROWS=rows,
        RUN=run,
        OUT_H=h,
        OUT_W=w,
        K=k,
        TILES_Q=tiles_q,
        TILES_K=tiles_k,
        STEPS=steps,
        BP=tile.pixels,
        BQ=block_q,
        BK=block_k,
        MAPS=coefficients.numel() > members * n,
        WORDS=words(stride, tile),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    dw: Tensor = partial.sum(0)[:, : rows * run].unflatten(1, (rows, run))
    return dw


def geometry(images: Tensor, pixels: int, stride: Sequence[int]) -> tuple[int, ...]:
    """Return what both kernels take: numbers of pixels and samples, and distances in memory."""
    _, samples, height, width, _ = images.shape
    row = width * CHANNELS
    return pixels, samples, stride[0], stride[1] * CHANNELS, row, height * row


def words(stride: Sequence[int], tile: StemTile) -> int:
    """Return how many numbers a load can read: windows begin at multiples of it."""
    return min(tile.words, 8 if stride[1] % 2 == 0 else 4)
