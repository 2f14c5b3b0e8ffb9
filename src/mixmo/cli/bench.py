"""mixmo bench [RECIPE] [--field value ...] [--device cpu] [--json]"""

import json
import math
from dataclasses import asdict
from itertools import pairwise

from mixmo.cli.arguments import add_recipe, parse, parser, recipe_of
from mixmo.cli.console import Output, grid
from mixmo.engine import Runtime
from mixmo.engine.benchmark import Result, benchmark
from mixmo.utils.errors import UserError


def main(arguments: list[str]) -> None:
    into = parser(
        "bench",
        "How fast a recipe trains and predicts here, beside an ordinary network, on random images. Without a RECIPE: "
        "cifar100/cut-mixmo in bf16 on a GPU, digits/cut-mixmo on a CPU. Ctrl-C shows what was measured so far.",
    )
    arguments = with_recipe(arguments)
    add_recipe(into, arguments, needed=False)
    into.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, ...; auto takes a GPU where there is one")
    into.add_argument("--compile", type=bool | None, default=None, help="compile the step; by default on a GPU only")
    into.add_argument("--seconds", type=float, default=1.0, help="length of a repeat")
    into.add_argument("--repeats", type=int, default=5, help="repeats of each measurement; their median is shown")
    into.add_argument("--json", action="store_true", help="print JSON")
    parsed = parse(into, arguments)
    if not 0 < parsed.seconds < math.inf or parsed.repeats < 1:
        raise UserError(f"--seconds {parsed.seconds} --repeats {parsed.repeats}: both must be positive and finite")
    device = Runtime(device=parsed.device).resolve()
    result: Result | None = None
    try:
        for result in benchmark(  # noqa: B007 - it is wanted afterwards
            recipe_of(parsed), device, compiled=parsed.compile, seconds=parsed.seconds, repeats=parsed.repeats
        ):
            pass
    finally:  # also what was measured before Ctrl-C, or before the memory was full
        if result is not None and parsed.json:
            print(json.dumps(asdict(result), indent=2))
        elif result is not None:
            show(result)


def with_recipe(arguments: list[str]) -> list[str]:
    """The arguments, led by the default of the device they name if no recipe leads them."""
    if arguments and not arguments[0].startswith("-"):
        return arguments
    named = [value for word, value in pairwise(arguments) if word == "--device"]
    named += [word.removeprefix("--device=") for word in arguments if word.startswith("--device=")]
    device = Runtime(device=named[-1] if named else "auto").resolve()
    default = ["cifar100/cut-mixmo", "--precision", "bf16"] if device.type == "cuda" else ["digits/cut-mixmo"]
    return [*default, *arguments]


def show(result: Result) -> None:
    """A table on the terminal."""
    console = Output(110)
    title = f"{result.architecture}, batch {result.batch_size}, {result.precision}, step {result.mode}"
    columns = ("network", "what", "images/s", "spread", "ms", "TFLOP/s", "of peak", "GiB", "compile s")
    table = grid(*columns, words=2, title=title)
    for row in result.rows:
        table.add_row(
            row.network,
            row.what,
            f"{row.images_per_second:,.0f}",
            f"{100 * row.spread:.1f} %",
            f"{row.milliseconds:.3f}",
            f"{row.tflops:.3g}",
            f"{100 * row.share_of_peak:.1f} %",
            "" if row.memory_gib is None else f"{row.memory_gib:.2f}",
            "" if row.compile_seconds is None else f"{row.compile_seconds:.1f}",
        )
    console.print(table)
    console.print(f"{result.device}, torch {result.torch}; largest matrix product {result.peak_tflops:.3g} TFLOP/s")
