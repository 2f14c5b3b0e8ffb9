"""cuDNN against the Triton kernels of `mixmo.kernels`, in bfloat16 and fp8, for each 3x3 convolution of WRN-28-10.

    PYTHONPATH=src python benchmarks/convolutions.py --check         # is every kernel right on this GPU?
    PYTHONPATH=src python benchmarks/convolutions.py                 # the table, for batches of 256 in bfloat16
    PYTHONPATH=src python benchmarks/convolutions.py --tiles         # the times of all tiles, and nothing else
    PYTHONPATH=src python benchmarks/convolutions.py --compile-only  # does everything compile for Hopper? Without a GPU

Times are of one call inside a CUDA graph, the operands not in the cache; "sustained" is the mean over half a second,
when clocks drop. Errors are relative to float32 without TF32, for the checks to float64; in fp8, both of the quantised
operands.
"""

import argparse
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from mixmo.kernels.choice import (
    TOLERANCE,
    Call,
    Choice,
    choose_fp8,
    compile_together,
    correct_times,
    cudnn_benchmark,
    event_milliseconds,
    fastest,
    graph_milliseconds,
    operands,
    operands_fp8,
    record,
    worthwhile,
)
from mixmo.kernels.directions import DIRECTIONS, FP8
from mixmo.kernels.fp8 import compute_fp8, reference
from mixmo.kernels.ops import CUDNN, compute
from mixmo.kernels.quantisation import E4M3
from mixmo.kernels.shapes import Shape

LAYERS = {  # of WRN-28-10, as (input channels, side, output channels, stride, padding), and how many there are
    (160, 32, 160, 1, 1): 7,
    (320, 16, 320, 1, 1): 6,
    (640, 8, 640, 1, 1): 6,
    (160, 32, 320, 1, 1): 1,
    (320, 16, 640, 1, 1): 1,
    (320, 33, 320, 2, 0): 1,
    (640, 17, 640, 2, 0): 1,
    (16, 32, 160, 1, 1): 1,
}
CUDA = torch.device("cuda")
CHECKED = (torch.bfloat16, torch.float16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare every kernel and tile with float64")
    parser.add_argument("--tiles", action="store_true", help="only time cuDNN and every tile")
    parser.add_argument("--compile-only", action="store_true", help="compile every kernel and tile for Hopper; no GPU")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=300.0, help="of --check: draw random shapes for so long")
    arguments = parser.parse_args()
    if arguments.compile_only:
        compile_all(arguments.batch_size)
    elif arguments.check:
        check(arguments.seconds)
    elif arguments.tiles:
        time_tiles(arguments.batch_size)
    else:
        table(arguments.batch_size)


def shapes(batch: int) -> Iterator[tuple[Shape, int]]:
    for (c, side, k, stride, padding), count in LAYERS.items():
        yield Shape(batch, c, side, side, k, stride, padding), count


def table(batch: int) -> None:
    """Print the table, and the milliseconds of a step in all."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}\n")
    print("| convolution | layers | direction | cuDNN ms | Triton ms | sustained | tile | errors | TFLOP/s |")
    print("|---|---|---|---|---|---|---|---|---|")
    step = {"cuDNN": 0.0, "the fastest": 0.0, "the fastest with fp8": 0.0}
    with cudnn_benchmark():
        for shape, count in shapes(batch):
            for direction in DIRECTIONS:
                theirs, ours = row(shape, count, direction)
                step["cuDNN"] += count * theirs
                step["the fastest"] += count * min(theirs, ours)
                quantised = direction in FP8 and shape.supported_in_fp8
                step["the fastest with fp8"] += count * (
                    row_fp8(shape, count, direction) if quantised else min(theirs, ours)
                )
    print("\nms per step, these convolutions only: " + ", ".join(f"{name} {ms:.2f}" for name, ms in step.items()))


def row(shape: Shape, count: int, direction: str) -> tuple[float, float]:
    """Print a row; return the milliseconds of cuDNN and of the fastest tile."""
    sets = operands(shape, torch.bfloat16, CUDA)

    def calls(kernel: str) -> list[Call]:
        return [partial(compute, direction, kernel, *one, shape.stride, shape.padding) for one in sets]

    tiles = worthwhile(DIRECTIONS[direction], shape)
    choice = fastest(calls(CUDNN), {name: calls(name) for name in tiles}, graph_milliseconds)
    exact = by_torch(direction, shape, sets[0], torch.float32)
    tried = [CUDNN] if choice.tile is None else [CUDNN, choice.tile]
    errors = [f"{error(calls(name)[0](), exact):.1e}" for name in tried]
    held = [f"{sustained(calls(name)):.3f}" for name in tried]
    print_row(shape, count, direction, choice, held, errors)
    return choice.cudnn_ms, choice.cudnn_ms if choice.ours_ms is None else choice.ours_ms


def row_fp8(shape: Shape, count: int, direction: str) -> float:
    """Print the row of a direction in fp8, beside cuDNN in bfloat16; return the milliseconds of the fastest tile."""
    choice = choose_fp8(shape, direction, CUDA)
    if choice.tile is None or choice.ours_ms is None:
        print_row(shape, count, f"{direction}, fp8", choice, [], ["no tile is right"])
        return choice.cudnn_ms
    sets = operands_fp8(shape, direction, CUDA)
    calls = [partial(compute_fp8, direction, choice.tile, one, shape) for one in sets]
    off = error(calls[0](), reference(direction, sets[0], shape, torch.float32))
    print_row(shape, count, f"{direction}, fp8", choice, [f"{sustained(calls):.3f}"], [f"{off:.1e}"])
    return choice.ours_ms


def print_row(shape: Shape, count: int, direction: str, choice: Choice, held: list[str], errors: list[str]) -> None:
    ours = choice.ours_ms
    rates = [f"{shape.flops / 1e9 / ms:.0f}" for ms in (choice.cudnn_ms, ours) if ms is not None]
    cells = [str(shape), str(count), direction, f"{choice.cudnn_ms:.3f}", "-" if ours is None else f"{ours:.3f}"]
    cells += [" / ".join(held), choice.tile or "-", " / ".join(errors), " / ".join(rates)]
    print(f"| {' | '.join(cells)} |", flush=True)


def time_tiles(batch: int) -> None:
    """Print the milliseconds of cuDNN in bfloat16 and of every tile that is right."""
    with cudnn_benchmark():
        for shape, _ in shapes(batch):
            for direction, kernel in DIRECTIONS.items():
                sets = operands(shape, torch.bfloat16, CUDA)
                calls: dict[str, list[Call]] = {
                    name: [partial(compute, direction, name, *one, shape.stride, shape.padding) for one in sets]
                    for name in (CUDNN, *worthwhile(kernel, shape))
                }
                print_times(f"{shape}, {direction}", calls[CUDNN][0](), calls)
            for direction, in_fp8 in FP8.items() if shape.supported_in_fp8 else ():
                quantised = operands_fp8(shape, direction, CUDA)
                calls = {
                    name: [partial(compute_fp8, direction, name, one, shape) for one in quantised]
                    for name in worthwhile(in_fp8, shape)
                }
                print_times(f"{shape}, {direction}, fp8", compute_fp8(direction, CUDNN, quantised[0], shape), calls)


def print_times(what: str, expected: Tensor, calls: dict[str, list[Call]]) -> None:
    times = correct_times(expected, calls, graph_milliseconds)
    line = ", ".join(f"{name} {ms:.3f}" for name, ms in times.items())
    failed = [name for name in calls if name not in times]
    print(f"{what}: {line}{'; failed or wrong: ' if failed else ''}{', '.join(failed)}", flush=True)


def by_torch(direction: str, shape: Shape, one: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Compute a direction in another precision, without TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        x, weight, dy = (operand.to(dtype) for operand in one)
        return compute(direction, CUDNN, x, weight, dy, shape.stride, shape.padding)
    finally:
        torch.backends.cudnn.allow_tf32 = before


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.to(exact.dtype) - exact).norm() / exact.norm())


def sustained(calls: Sequence[Call], seconds: float = 0.5) -> float:
    """Return the mean milliseconds of a call over half a second without a pause."""
    graph, count = record(calls)
    replays = max(1, round(1000 * seconds / event_milliseconds(graph.replay)))

    def replay() -> None:
        for _ in range(replays):
            graph.replay()

    return event_milliseconds(replay) / (replays * count)


def check(seconds: float) -> None:
    """Compare every kernel and tile with float64, on the layers of WRN-28-10 and then on random shapes."""
    draw, began, worst, worst_fp8, wrong, checked = random.Random(0), time.monotonic(), 0.0, 0.0, 0, 0
    layers = sorted((shape for shape, _ in shapes(16)), key=lambda shape: -shape.stride)
    for shape in itertools.chain(layers, (drawn(draw) for _ in itertools.count())):
        if time.monotonic() - began > seconds:
            break
        checked += 1
        for dtype in CHECKED:
            one = operands(shape, dtype, CUDA)[0]
            for direction, kernel in DIRECTIONS.items():
                exact = by_torch(direction, shape, one, torch.float64)
                calls = {
                    name: partial(compute, direction, name, *one, shape.stride, shape.padding) for name in kernel.tiles
                }
                compile_together(calls.values())
                for name, call in calls.items():
                    found, again = call(), call()
                    off = error(found, exact)
                    worst = max(worst, off)
                    if not (off < TOLERANCE / 2 and torch.equal(found, again)):
                        wrong += 1
                        print(f"WRONG: {shape}, {direction}, {name}, {dtype}: {off:.1e}", flush=True)
        for direction, in_fp8 in FP8.items() if shape.supported_in_fp8 else ():
            quantised = operands_fp8(shape, direction, CUDA, 1)[0]
            exact = reference(direction, quantised, shape, torch.float64)
            in_turn = {name: partial(compute_fp8, direction, name, quantised, shape) for name in in_fp8.tiles}
            compile_together(in_turn.values())
            for name, call_fp8 in in_turn.items():
                found, again = call_fp8(), call_fp8()
                off = error(found, exact)
                worst_fp8 = max(worst_fp8, off)
                if not (off < TOLERANCE and torch.equal(found, again)):
                    wrong += 1
                    print(f"WRONG: {shape}, {direction}, {name}, fp8: {off:.1e}", flush=True)
        print(f"checked: {shape}, {time.monotonic() - began:.0f} s", flush=True)
    errors = f"worst relative error {worst:.1e}, in fp8 {worst_fp8:.1e}"
    print(f"{checked} shapes, {wrong} wrong, {errors}, {time.monotonic() - began:.0f} s")
    if wrong:
        raise SystemExit(1)


def drawn(draw: random.Random) -> Shape:
    """Draw an odd shape: any side, channels of any multiple of 8, any stride and padding."""
    n, side, other = draw.choice([1, 2, 5, 64, 100]), draw.randint(3, 40), draw.randint(3, 40)
    c, k = (8 * draw.randint(1, 40) for _ in range(2))
    return Shape(n, c, side, other, k, draw.choice([1, 2]), draw.choice([0, 1]))


def compile_all(batch: int) -> None:
    """Compile every tile for the layers of WRN-28-10; print what their programs need."""
    from convolutions_compile import Compiled, compile_direction

    bad, seen = 0, set()
    columns = ("direction", "kernel", "tile", *Compiled._fields[1:])
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    everything = [(name, kernel.tiles, torch.bfloat16) for name, kernel in DIRECTIONS.items()]
    everything += [(name, kernel.tiles, E4M3) for name, kernel in FP8.items()]
    for shape, _ in shapes(batch):
        for direction, tiles, dtype in everything:
            for name, tile in tiles.items():
                for built in compile_direction(direction, shape, tile, dtype):
                    bad += not built.fits
                    line = f"| {' | '.join(map(str, (direction, built.kernel, name, *built[1:])))} |"
                    if line not in seen:
                        print(line, flush=True)
                    seen.add(line)
    print(f"{bad} do not fit")
    if bad:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
