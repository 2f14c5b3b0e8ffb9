"""mixmo train RECIPE [--field value ...] --out DIR; mixmo train --resume --out DIR"""

import sys
from dataclasses import fields
from pathlib import Path

from mixmo.cli.arguments import add_recipe, given_fields, parse, parser, recipe_of
from mixmo.cli.tables import print_report
from mixmo.engine import Runtime, train
from mixmo.evaluation.run_scores import score_runs, stored_scores
from mixmo.recipes import Recipe
from mixmo.reports.build import report
from mixmo.reports.live_report import LiveReport, available
from mixmo.runs.directory import Run
from mixmo.utils.errors import first_line
from mixmo.utils.progress import say
from mixmo.utils.text import printable


def main(arguments: list[str]) -> None:
    into = parser(
        "train",
        "Train a recipe into a run directory. Ctrl-C stops it; --resume --out DIR continues to the same result.",
    )
    add_recipe(into, arguments, unless="--resume")
    into.add_argument("--out", type=Path, required=True, help="run directory to write")
    into.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in --out, if there is one, with its own recipe; --epochs may be larger where the "
        "schedule so far stays the same",
    )
    into.add_argument(
        "--report",
        type=bool,
        default=True,
        help="update report.html in the run directory during training, if `mixmo[report]` is installed",
    )
    into.add_fields(Runtime, "run")
    parsed = parse(into, arguments)
    runtime = Runtime(**{field.name: getattr(parsed, field.name) for field in fields(Runtime)})
    base = Run.open(parsed.out).recipe if parsed.recipe is None and parsed.resume else None
    recipe, writes = recipe_of(parsed, base), runtime.world().writes
    published = recipe.start and not recipe.pretrained  # those of finetune/ have a rate for pretrained weights
    if published and "lr" not in given_fields(parsed) and not (parsed.resume or runtime.quiet) and writes:
        print(_hint(recipe), file=sys.stderr)
    live = [LiveReport(parsed.out)] if parsed.report and writes and available() else []
    run = train(recipe, parsed.out, runtime, resume=parsed.resume, loggers=live)
    if writes:
        print_report(stored_scores(run) if run.recipe.networks == 1 else score_runs([run]), str(run.path))
    for each in live:
        _write_report(each.file, run, runtime)


def _write_report(file: Path, run: Run, runtime: Runtime) -> None:
    """Write the report of the finished run and print its path; an error does not fail the command."""
    try:
        report(run, data=runtime.data).save(file)
    except Exception as error:  # whatever it is, the training has ended well
        print(printable(f"mixmo: no report: {first_line(error)}"), file=sys.stderr)
        return
    if not runtime.quiet:
        say(f"report   {printable(str(file))}")


def _hint(recipe: Recipe) -> str:
    """Return what to know about the learning rate of a recipe that starts from a trained network."""
    if recipe.members == 1:
        return f"fine-tuning usually needs a smaller learning rate; try --lr {recipe.lr / 10:g}"
    return (
        f"lr = {recipe.lr:g} is for random weights: --lr {recipe.lr / 10:g}, say, keeps more of the start network; "
        "one that is too low leaves the members nearly identical (`mixmo eval --multiplex` shows it)"
    )
