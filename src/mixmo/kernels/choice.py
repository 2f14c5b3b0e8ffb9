"""The choice between cuDNN and the Triton kernels: the fastest one whose result is correct."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixmo.kernels.fp8 import compute_fp8
from mixmo.kernels.ops import CUDNN, compute
from mixmo.kernels.quantisation import E4M3, Operands, forward_operands, input_operands
from mixmo.kernels.shapes import Shape

TOLERANCE = 1e-2  # relative error against cuDNN: bfloat16 has 8 bits
GAIN = 1.02  # times faster than cuDNN, at least
WASTE = 1.34  # times the arithmetic of the best tile: a tile that pads more is not tried
COLD = 150e6  # bytes of operands used in turn, more than a cache holds
CALLS, REPEATS = 20, 7  # calls per repeat

if TYPE_CHECKING:
    from mixmo.kernels.directions import Kernel, KernelFP8

Call = Callable[[], Tensor]
Timer = Callable[[Sequence[Call]], float]


@dataclass(frozen=True)
class Choice:
    """What computes one direction of a convolution, and the times that decided."""

    kernel: str  # "cudnn", or the name of a tile
    cudnn_ms: float
    tile: str | None = None  # the fastest of ours that is right
    ours_ms: float | None = None

    @property
    def milliseconds(self) -> float:
        """Milliseconds per call."""
        return self.cudnn_ms - self.gain_ms

    @property
    def gain_ms(self) -> float:
        """Milliseconds saved per call."""
        return 0.0 if self.kernel == CUDNN or self.ours_ms is None else self.cudnn_ms - self.ours_ms


def choose(shape: Shape, direction: str, dtype: torch.dtype, device: torch.device) -> Choice:
    """Measure one direction of a convolution on this device."""
    from mixmo.kernels.directions import DIRECTIONS

    if dtype == E4M3:
        return choose_fp8(shape, direction, device)
    sets = operands(shape, dtype, device)

    def calls(kernel: str) -> list[Call]:
        return [partial(compute, direction, kernel, *one, shape.stride, shape.padding) for one in sets]

    tried = {name: calls(name) for name in worthwhile(DIRECTIONS[direction], shape)}
    with torch.cuda.device(device):
        choice = fastest(calls(CUDNN), tried, graph_milliseconds)
    torch.cuda.empty_cache()  # of the recorded graphs
    return choice


def choose_fp8(shape: Shape, direction: str, device: torch.device) -> Choice:
    """Measure one direction in fp8; it takes the fastest tile, whatever cuDNN needs in bfloat16."""
    from mixmo.kernels.directions import FP8

    sets, half = operands_fp8(shape, direction, device), operands(shape, torch.bfloat16, device)

    def calls(kernel: str) -> list[Call]:
        return [partial(compute_fp8, direction, kernel, one, shape) for one in sets]

    tried = {name: calls(name) for name in worthwhile(FP8[direction], shape)}
    with torch.cuda.device(device):
        expected = calls(CUDNN)[0]()
        cudnn_ms = graph_milliseconds(
            [partial(compute, direction, CUDNN, *one, shape.stride, shape.padding) for one in half]
        )
        times = correct_times(expected, tried, graph_milliseconds)
    torch.cuda.empty_cache()
    if not times:
        return Choice(CUDNN, cudnn_ms)
    tile = min(times, key=times.__getitem__)
    return Choice(tile, cudnn_ms, tile, times[tile])


def worthwhile(kernel: "Kernel | KernelFP8", shape: Shape) -> list[str]:
    """Return the tiles that do not pad much more than the best one.

    Two programs of 4 warps share a multiprocessor: one computes while the other waits for a box to pass through
    registers. With 8 warps there is one, and boxes of images were always faster (benchmarks/RESULTS.md).
    """
    work = {name: kernel.work(shape, tile) for name, tile in kernel.tiles.items()}
    tiles = {name: tile for name, tile in kernel.tiles.items() if work[name] <= WASTE * min(work.values())}
    slower = {str(tile._replace(images=False)) for tile in tiles.values() if tile.images and tile.warps == 8}
    return [name for name in tiles if name not in slower]


def fastest(cudnn: Sequence[Call], candidates: Mapping[str, Sequence[Call]], milliseconds: Timer) -> Choice:
    """Return the choice; a kernel that fails or disagrees with cuDNN is not a candidate."""
    expected, cudnn_ms = cudnn[0](), milliseconds(cudnn)
    times = correct_times(expected, candidates, milliseconds)
    if not times:
        return Choice(CUDNN, cudnn_ms)
    tile = min(times, key=times.__getitem__)
    return Choice(tile if GAIN * times[tile] <= cudnn_ms else CUDNN, cudnn_ms, tile, times[tile])


def correct_times(expected: Tensor, candidates: Mapping[str, Sequence[Call]], milliseconds: Timer) -> dict[str, float]:
    """Return the times of the kernels that neither fail nor disagree with what is expected, or with themselves."""
    compile_together(calls[0] for calls in candidates.values())
    times: dict[str, float] = {}
    for name, calls in candidates.items():
        with suppress(Exception):  # too little shared memory on this GPU, say
            found, again = calls[0](), calls[0]()
            error = (found.float() - expected.float()).norm() / expected.float().norm()
            if error < TOLERANCE and torch.equal(found, again):
                times[name] = milliseconds(calls)
    return times


def compile_together(calls: Iterable[Call]) -> None:
    """Make each call once, all at the same time, since Triton compiles outside of Python's lock; ignore failures."""

    def once(call: Call) -> None:
        with suppress(Exception):
            call()

    with ThreadPoolExecutor() as pool:
        for call in calls:
            pool.submit(once, call)


def operands(
    shape: Shape, dtype: torch.dtype, device: torch.device, count: int | None = None
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return random x, weight and dy: several sets, so that a repeated call does not find its operands in the cache."""
    sizes = (shape.input, (shape.k, shape.c, 3, 3), shape.output)
    generator = None if device.type == "meta" else torch.Generator(device).manual_seed(0)

    def one() -> tuple[Tensor, Tensor, Tensor]:
        x, weight, dy = (
            torch.randn(size, device=device, generator=generator).to(dtype, memory_format=torch.channels_last)
            for size in sizes
        )
        return x, weight, dy

    each = dtype.itemsize * (math.prod(shape.input) + math.prod(shape.output))
    return [one() for _ in range(count or min(4, 1 + int(COLD / each)))]


def operands_fp8(shape: Shape, direction: str, device: torch.device, count: int | None = None) -> list[Operands]:
    """Return such operands of a direction in fp8."""

    each = operands(shape, torch.bfloat16, device, count)
    if direction == "forward":
        return [forward_operands(x, weight) for x, weight, _ in each]
    return [input_operands(dy, weight, dy.abs().amax().float()) for _, weight, dy in each]


@contextmanager
def cudnn_benchmark() -> Iterator[None]:
    """Let cuDNN search for its fastest algorithms, as the compiled step does."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def graph_milliseconds(calls: Sequence[Call]) -> float:
    """Return the median time of a call on the GPU; a CUDA graph leaves the time to launch it out."""
    graph, count = record(calls)
    return statistics.median(event_milliseconds(graph.replay) for _ in range(REPEATS)) / count


def record(calls: Sequence[Call]) -> tuple[torch.cuda.CUDAGraph, int]:
    """Record some rounds of the calls as a CUDA graph, replay it once, and return it with the number of calls in it."""
    rounds = -(-CALLS // len(calls))
    stream, graph, current = torch.cuda.Stream(), torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for call in calls:  # compiles, or searches among cuDNN's algorithms
            call()
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(rounds):
                for call in calls:
                    call()
    finally:
        torch.cuda.set_stream(current)  # torch leaves its own stream current when the end of a capture fails
    graph.replay()
    return graph, rounds * len(calls)


def event_milliseconds(call: Callable[[], object]) -> float:
    """Return the time of a call on the GPU."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))
