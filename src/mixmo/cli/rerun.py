"""mixmo rerun RUN [--out DIR] [--data DIR] [--device DEVICE]"""

import sys
import tempfile
from pathlib import Path

import torch

from mixmo.cli.arguments import parse, parser
from mixmo.cli.console import grid, number, print_line, print_table
from mixmo.engine import Runtime, train
from mixmo.engine.recorded import read_recorded
from mixmo.evaluation.reproducibility import RunDifference, compare_trainings
from mixmo.runs.directory import Run
from mixmo.utils.errors import UserError


def main(arguments: list[str]) -> None:
    into = parser(
        "rerun",
        "Train the recipe of a finished run again and compare. On a CPU with the same versions, weights and metrics "
        "must be identical, bit for bit; elsewhere Top1 and NLL may differ by 4 standard errors of their difference on "
        "the same test images. Exit status 1 if they differ by more.",
    )
    into.add_argument("run", type=Path, help="finished run directory; it is not changed")
    into.add_argument("--out", type=Path, help="run directory to write (default: a temporary one, which is deleted)")
    into.add_argument("--data", type=Path, help="folder of the data sets")
    into.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: the device type of the run)")
    into.add_argument("--quiet", action="store_true", help="print no progress")
    parsed = parse(into, arguments)
    run = Run.open(parsed.run)
    if not run.is_finished():
        raise UserError(f"{run.path} is unfinished; `mixmo train --resume --out {run.path}` completes it")
    run.read_logits()  # a published run may lack them: found before the training rather than after it
    known = read_recorded(run)
    if known.device == "cpu":
        torch.set_num_threads(known.threads)
    device, options = parsed.device or known.device, known.options
    if device.partition(":")[0] != known.device:  # another kind of device compiles or not as it does by default
        options = {**options, "compile": None}
    runtime = Runtime(device=device, data=parsed.data, quiet=parsed.quiet, **options)
    with tempfile.TemporaryDirectory(prefix="mixmo-rerun-") as folder:
        found = compare_trainings(run, train(run.recipe, parsed.out or Path(folder) / "run", runtime))
    _print(found)
    if not found.reproduced:
        print(f"mixmo: {run.path} was not reproduced: {_reason(found)}", file=sys.stderr)
        sys.exit(1)


def _print(found: RunDifference) -> None:
    if found.environment:
        rows = [(name, str(one), str(two)) for name, (one, two) in found.environment.items()]
        print_table(grid("environment", "run", "rerun", rows=rows, words=3))
    else:
        print_line("the same environment: the results must be identical")
    scores = [
        (each.score, number(each.first), number(each.second), number(each.second - each.first), number(each.tolerance))
        for each in found.scores
    ]
    print_table(grid("score", "run", "rerun", "difference", "tolerance", rows=scores))
    if found.files:
        print_line(f"not identical: {', '.join(found.files)}")
    else:
        print_line("identical, bit for bit: weights, logits and metrics")


def _reason(found: RunDifference) -> str:
    if found.exact:
        return "the environment is the same, the results are not"
    beyond = [each for each in found.scores if not each.within]
    return ", ".join(f"{each.score} differs by {each.second - each.first:+.4f}" for each in beyond)
