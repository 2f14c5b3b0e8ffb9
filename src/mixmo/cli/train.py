"""mixmo train RECIPE [--field value ...] --out DIR [--resume]"""

from dataclasses import fields
from pathlib import Path

from mixmo.cli.arguments import add_recipe, parse, parser, recipe_of
from mixmo.cli.tables import print_report
from mixmo.engine import Runtime, train
from mixmo.evaluation.run_scores import score_runs


def main(arguments: list[str]) -> None:
    into = parser(
        "train", "Train a recipe into a run directory. Ctrl-C stops it; --resume continues to the same result."
    )
    add_recipe(into, arguments)
    into.add_argument("--out", type=Path, required=True, help="run directory to write")
    into.add_argument("--resume", action="store_true", help="continue the run in --out, if there is one")
    into.add_fields(Runtime, "run")
    parsed = parse(into, arguments)
    runtime = Runtime(**{field.name: getattr(parsed, field.name) for field in fields(Runtime)})
    run = train(recipe_of(parsed), parsed.out, runtime, resume=parsed.resume)
    if runtime.world().writes:
        print_report(score_runs([run]), str(run.path))
