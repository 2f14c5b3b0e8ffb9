"""The sums over pixels of batch normalisation: each map is read once, and what follows per channel is computed with it.

    m = average of x over the pixels of a ghost batch        v = average of (x - m)^2
    r = 1 / sqrt(v + eps)        scale = weight r        shift = bias - scale m

    a = sum of dz        b = sum of dz (x - m)        with dz = dy where x scale + shift > 0, else 0
    slope = -scale r^2 b / n        constant = -scale a / n - slope m        d weight = r b        d bias = a

The memory of a channels_last map is a matrix of pixels by channels. Some pixels side by side make a row whose length is
a multiple of BLOCK, so that every program reads whole blocks: with 160 channels, 8 pixels make 5 blocks. A program sums
some rows of one block; then another kernel adds the parts in a fixed order, so that the result repeats. The mean and
the squares of a part are taken about its first row, and then combined (Chan et al., 1983): no digits are lost where the
mean is much larger than the deviation.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixmo.kernels.devices import multiprocessors
from mixmo.kernels.memory_format import nhwc
from mixmo.kernels.shapes import blocks

BLOCK = 256  # numbers of a row that a program reads
AT_ONCE = 8  # programs on a multiprocessor
HOW: dict[str, Any] = {"BLOCK": BLOCK, "ROWS": 4, "STAGES": 6, "num_warps": 2}  # rows at a time
CHANNELS = 8  # whose parts a program adds
LEAST = 2**23  # numbers in a map: for less, two more launches cost what the kernels gain
COMBINE: dict[str, Any] = {"PARTS": 512, "CHANNELS": CHANNELS, "num_warps": 8}  # so many parts at a time


def fold(channels: int) -> int:
    """Return how many pixels make a row.

    >>> fold(160), fold(640), fold(64)
    (8, 2, 4)
    """
    return BLOCK // math.gcd(channels, BLOCK)


@triton.jit(do_not_specialize=["length", "each"])
def moments_kernel(
    x, partial, length, each, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr
):
    """One program: the mean and the sum of squares about it of `each` rows of one block."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part, ghost = tl.program_id(1), tl.program_id(2)
    count = tl.minimum(each, length - part * each)
    x += (ghost.to(tl.int64) * length + part * each) * WIDTH + column
    about = tl.load(x).to(tl.float32)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    squares = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for first in tl.range(0, count, ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)[:, None]
        there = row < count
        d = tl.load(x[None, :] + row * WIDTH, mask=there, other=0.0).to(tl.float32) - about[None, :]
        d = tl.where(there, d, 0.0)
        total += d
        squares += d * d
    sum_d = tl.sum(total, 0)
    partial += (ghost.to(tl.int64) * tl.num_programs(1) + part) * 2 * WIDTH + column
    tl.store(partial, about + sum_d / count)
    tl.store(partial + WIDTH, tl.sum(squares, 0) - sum_d * sum_d / count)


@triton.jit(do_not_specialize=["length", "each"])
def gradient_sums_kernel(
    dy,
    x,
    statistics,
    partial,
    length,
    each,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program: both sums of `each` rows of one block."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part, ghost = tl.program_id(1), tl.program_id(2)
    count = tl.minimum(each, length - part * each)
    start = (ghost.to(tl.int64) * length + part * each) * WIDTH + column
    statistics += ghost * C + column % C
    each_of = tl.num_programs(2) * C
    m = tl.load(statistics)[None, :]
    scale, shift = tl.load(statistics + 3 * each_of)[None, :], tl.load(statistics + 4 * each_of)[None, :]
    sum_dz = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    sum_dz_x = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for first in tl.range(0, count, ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)[:, None]
        there = row < count
        value = tl.load(x + start[None, :] + row * WIDTH, mask=there, other=0.0).to(tl.float32)
        dz = tl.load(dy + start[None, :] + row * WIDTH, mask=there, other=0.0).to(tl.float32)
        dz = tl.where(value * scale + shift > 0, dz, 0.0)
        sum_dz += dz
        sum_dz_x += dz * (value - m)
    partial += (ghost.to(tl.int64) * tl.num_programs(1) + part) * 2 * WIDTH + column
    tl.store(partial, tl.sum(sum_dz, 0))
    tl.store(partial + WIDTH, tl.sum(sum_dz_x, 0))


@triton.jit
def total_of_parts(partial, about, length, each, parts, C, FOLD, MOMENTS, PARTS: tl.constexpr, CHANNELS: tl.constexpr):
    """Add the parts of some channels, FOLD in each of the `parts` of its rows; of moments, those about `about`."""
    sum_a = tl.zeros((PARTS, CHANNELS), dtype=tl.float32)
    sum_b = tl.zeros((PARTS, CHANNELS), dtype=tl.float32)
    for first in tl.range(0, parts * FOLD, PARTS):
        one = (first + tl.arange(0, PARTS))[:, None]
        part, there = one // FOLD, one < parts * FOLD
        at = partial[None, :] + part * (2 * FOLD * C) + one % FOLD * C
        a = tl.load(at, mask=there, other=0.0)
        b = tl.load(at + FOLD * C, mask=there, other=0.0)
        if MOMENTS:
            count = tl.where(there, tl.minimum(each, length - part * each), 0).to(tl.float32)
            d = a - about[None, :]
            a = count * d
            b += a * d
        sum_a += a
        sum_b += b
    return tl.sum(sum_a, 0), tl.sum(sum_b, 0)


@triton.jit(do_not_specialize=["length", "each", "parts"])
def statistics_kernel(
    partial,
    weight,
    bias,
    result,
    length,
    each,
    parts,
    eps,
    C: tl.constexpr,
    FOLD: tl.constexpr,
    PARTS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """One program: the statistics of some channels of a ghost batch."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    ghost, ghosts = tl.program_id(1), tl.num_programs(1)
    partial += ghost.to(tl.int64) * parts * (2 * FOLD * C) + channel
    about = tl.load(partial)
    a, b = total_of_parts(partial, about, length, each, parts, C, FOLD, True, PARTS, CHANNELS)
    pixels = (length * FOLD).to(tl.float32)
    mean, variance = about + a / pixels, (b - a * a / pixels) / pixels
    inverse = 1 / tl.sqrt(variance + eps)
    scale = tl.load(weight + channel) * inverse
    result += ghost * C + channel
    tl.store(result, mean)
    tl.store(result + ghosts * C, variance)
    tl.store(result + 2 * ghosts * C, inverse)
    tl.store(result + 3 * ghosts * C, scale)
    tl.store(result + 4 * ghosts * C, tl.load(bias + channel) - scale * mean)


@triton.jit(do_not_specialize=["length", "each", "parts"])
def gradients_kernel(
    partial,
    statistics,
    result,
    length,
    each,
    parts,
    C: tl.constexpr,
    FOLD: tl.constexpr,
    PARTS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """One program: the gradients of some channels of a ghost batch."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    ghost, ghosts = tl.program_id(1), tl.num_programs(1)
    partial += ghost.to(tl.int64) * parts * (2 * FOLD * C) + channel
    a, b = total_of_parts(
        partial, tl.zeros((CHANNELS,), tl.float32), length, each, parts, C, FOLD, False, PARTS, CHANNELS
    )
    pixels = (length * FOLD).to(tl.float32)
    statistics += ghost * C + channel
    mean, inverse = tl.load(statistics), tl.load(statistics + 2 * ghosts * C)
    scale = tl.load(statistics + 3 * ghosts * C)
    slope = -scale * inverse * inverse * b / pixels
    result += ghost * C + channel
    tl.store(result, slope)
    tl.store(result + ghosts * C, -scale * a / pixels - slope * mean)
    tl.store(result + 2 * ghosts * C, inverse * b)
    tl.store(result + 3 * ghosts * C, a)


def supported(size: tuple[int, ...], ghost: int) -> bool:
    """Whether the kernels can sum maps of a size (N, C, H, W) in ghost batches of `ghost` images."""
    n, c, h, w = size
    return c % CHANNELS == 0 and n % ghost == 0 and ghost * h * w % fold(c) == 0


def statistics(x: Tensor, weight: Tensor, bias: Tensor, eps: float, ghost: int) -> Tensor:
    """Return m, v, r, scale and shift of each ghost batch and channel (5, G, C)."""
    cut, (n, c) = Cut.of(x, ghost), x.shape[:2]
    partial, result = cut.parts_of(x), torch.empty(5, n // ghost, c, dtype=torch.float32, device=x.device)
    moments_kernel[cut.grid](nhwc(x), partial, cut.length, cut.each, WIDTH=cut.width, **HOW)
    statistics_kernel[(c // CHANNELS, n // ghost)](
        partial, weight, bias, result, cut.length, cut.each, cut.parts, eps, C=c, FOLD=cut.width // c, **COMBINE
    )
    return result


def gradients(dy: Tensor, x: Tensor, statistics: Tensor, ghost: int) -> Tensor:
    """Return slope, constant, d weight and d bias of each ghost batch and channel (4, G, C)."""
    cut, (n, c) = Cut.of(x, ghost), x.shape[:2]
    partial, result = cut.parts_of(x), torch.empty(4, n // ghost, c, dtype=torch.float32, device=x.device)
    statistics = statistics.contiguous()
    gradient_sums_kernel[cut.grid](
        nhwc(dy),
        nhwc(x),
        statistics,
        partial,
        cut.length,
        cut.each,
        C=c,
        WIDTH=cut.width,
        **HOW,
    )
    gradients_kernel[(c // CHANNELS, n // ghost)](
        partial, statistics, result, cut.length, cut.each, cut.parts, C=c, FOLD=cut.width // c, **COMBINE
    )
    return result


class Cut(NamedTuple):
    """How a map is cut into programs."""

    ghosts: int
    length: int  # rows of a ghost batch
    width: int  # of a row
    each: int  # rows that a program sums

    @property
    def parts(self) -> int:
        return blocks(self.length, self.each)

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.width // BLOCK, self.parts, self.ghosts

    def parts_of(self, x: Tensor) -> Tensor:
        return torch.empty(self.ghosts, self.parts, 2, self.width, dtype=torch.float32, device=x.device)

    @classmethod
    def of(cls, x: Tensor, ghost: int) -> "Cut":
        n, c, h, w = x.shape
        ghosts, width, length = n // ghost, fold(c) * c, ghost * h * w // fold(c)
        wanted = multiprocessors(x.device) * AT_ONCE * BLOCK // (width * ghosts)
        return cls(ghosts, length, width, max(HOW["ROWS"], blocks(length, max(1, wanted))))
