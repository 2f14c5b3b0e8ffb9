"""mixmo bench [RECIPE] [--field value ...] [--device cpu] [--json]"""

from dataclasses import asdict
from typing import Annotated, Literal

from rich.table import Table

from mixmo.cli.arguments import add_recipe, parse, parser, recipe_of
from mixmo.cli.console import Output, grid, print_json, print_table
from mixmo.engine import Runtime
from mixmo.engine.benchmark import Result, benchmark
from mixmo.recipes.fields import Range, at_least


def main(arguments: list[str]) -> None:
    into = parser(
        "bench",
        "Training and prediction speed of a recipe on this machine, beside a standard network, on random images. "
        "Without RECIPE: cifar100/cut-mixmo in bf16 on a GPU, digits/cut-mixmo on a CPU. After Ctrl-C, the results so "
        "far are printed.",
    )
    add_recipe(into, arguments, needed=False)
    into.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one")
    into.add_argument("--compile", type=bool | None, help="compile the step; by default on a GPU only")
    text = "auto: the faster of cuDNN and Triton for each 3x3 convolution, with a table of both; or cudnn"
    into.add_argument("--kernels", type=Literal["auto", "cudnn"], default="auto", help=text)
    into.add_argument(
        "--seconds", type=Annotated[float, Range(0, 1e6, "(]")], default=1.0, help="length of one repeat, in seconds"
    )
    into.add_argument(
        "--repeats",
        type=Annotated[int, at_least(1)],
        default=5,
        help="repeats of each measurement; the median is printed",
    )
    into.add_argument("--json", action="store_true", help="print JSON")
    parsed = parse(into, arguments)
    device = Runtime(device=parsed.device).resolve()
    if parsed.recipe is None:
        parsed.recipe = "cifar100/cut-mixmo" if device.type == "cuda" else "digits/cut-mixmo"
        parsed.precision = getattr(parsed, "precision", "bf16" if device.type == "cuda" else "fp32")
    recipe = recipe_of(parsed)
    result: Result | None = None
    try:
        for result in benchmark(  # noqa: B007 - needed afterwards
            recipe,
            device,
            compiled=parsed.compile,
            kernels=parsed.kernels,
            seconds=parsed.seconds,
            repeats=parsed.repeats,
        ):
            pass
    finally:  # also what was measured before Ctrl-C, or before memory ran out
        if result is not None and parsed.json:
            print_json(asdict(result))
        elif result is not None:
            print_result(result)


def print_result(result: Result) -> None:
    """Print the results as a table."""
    console = Output(80)
    title = f"{result.architecture}, batch size {result.batch_size}, {result.precision}, {result.mode} step"
    columns = ["network", "measurement", "images/s", "spread %", "ms", "TFLOP/s", "peak %", "GiB", "compile s"]
    if result.fp8_peak_tflops is not None:
        columns.insert(7, "fp8 peak %")
    table = grid(*columns, words=2, title=title)
    for row in result.rows:
        table.add_row(
            row.network,
            row.what,
            f"{row.images_per_second:,.0f}",
            f"{100 * row.spread:.1f}",
            f"{row.milliseconds:.3g}" if row.milliseconds < 100 else f"{row.milliseconds:,.0f}",
            f"{row.tflops:.3g}",
            f"{100 * row.share_of_peak:.1f}",
            *([] if row.share_of_fp8_peak is None else [f"{100 * row.share_of_fp8_peak:.1f}"]),
            "" if row.memory_gib is None else f"{row.memory_gib:.2f}",
            "" if row.compile_seconds is None else f"{row.compile_seconds:.1f}",
        )
    console.print(table)
    if result.convolutions:
        print_table(convolutions(result))
    console.print("spread: (slowest - fastest) / median; ms: per step, or per test set")
    fp8 = "" if result.fp8_peak_tflops is None else f" in bf16, {result.fp8_peak_tflops:.3g} in fp8"
    console.print(f"peak: {result.peak_tflops:.3g} TFLOP/s{fp8}, a large matrix product; GiB: device memory")
    console.print(f"{result.device}, torch {result.torch}")


def convolutions(result: Result) -> Table:
    """Return the table of the 3x3 convolutions: what computes each, how fast both are, the share of the step."""
    columns = ("convolution", "layers", "direction", "kernel", "cuDNN ms", "TFLOP/s", "Triton ms", "TFLOP/s", "step %")
    step = next((row.milliseconds for row in reversed(result.rows) if row.what == "training step"), None)
    table = grid(*columns, words=1, title="3x3 convolutions of a step: images x channels, pixels")
    for each in result.convolutions:
        shape, choice = each.shape, each.choice
        times = [
            ("", "") if ms is None else (f"{ms:.3f}", f"{shape.flops / ms / 1e9:,.0f}")
            for ms in (choice.cudnn_ms, choice.ours_ms)
        ]
        table.add_row(
            str(shape),
            str(each.layers),
            f"{each.direction}{', fp8' if each.fp8 else ''}",
            choice.kernel,
            *times[0],
            *times[1],
            "" if step is None else f"{100 * each.layers * choice.milliseconds / step:.1f}",
        )
    return table
