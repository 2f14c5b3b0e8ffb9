"""mixmo show RECIPE [--field value ...]"""

from pathlib import Path

import yaml

from mixmo import data
from mixmo.cli.arguments import add_recipe, parse, parser, recipe_of
from mixmo.data.types import Dataset
from mixmo.engine import Runtime
from mixmo.engine.display import pace
from mixmo.engine.estimate import estimate
from mixmo.models import multiply_adds, parameters
from mixmo.recipes import PROTOCOLS, summary
from mixmo.recipes.fast import SUFFIX
from mixmo.recipes.protocols import FACTS, Facts
from mixmo.utils.progress import clock


def main(arguments: list[str]) -> None:
    into = parser("show", "A recipe in full, with parameters, multiply-adds, steps and time on this device.")
    add_recipe(into, arguments)
    into.add_argument("--device", default="auto", help="where the time is measured, by a few steps on random images")
    into.add_argument("--data", type=Path, help="folder of the data sets, for one whose size is not known beforehand")
    into.add_argument("--time", type=bool, default=True, help="measure the time")
    parsed = parse(into, arguments)
    recipe = recipe_of(parsed)
    dataset = parsed.recipe.partition("/")[0]
    protocol = "" if parsed.recipe.endswith(SUFFIX) else f"; {PROTOCOLS[dataset].summary}"
    print(f"# {parsed.recipe}: {summary(parsed.recipe)}{protocol}")
    print(yaml.safe_dump(recipe.to_dict(), sort_keys=False), end="")
    facts = FACTS.get(recipe.dataset) or facts_of(
        data.load(recipe.dataset, parsed.data, stream=True, workers=0, val=recipe.val)
    )
    net = recipe.network(facts.classes, facts.size[0])
    operations = multiply_adds(net, recipe.seen(facts.size))
    print(f"# {parameters(net):,} parameters, {operations / 1e9:.4f} G multiply-adds a prediction")
    if recipe.networks > 1:
        print(f"# each of {recipe.networks} networks")
    measured = estimate(recipe, facts, Runtime(device=parsed.device).resolve(), measure=parsed.time)
    steps = f"{measured.steps:,} steps, {measured.steps_per_epoch:,} an epoch"
    print(f"# {steps}; learning rate {recipe.rate:g} after the warm-up")
    if measured.seconds is not None:
        print(
            f"# about {clock(measured.seconds * recipe.networks)} on this {measured.device}, evaluation not counted "
            f"({pace(recipe.batch_size / measured.step_seconds)})"
        )


def facts_of(dataset: Dataset) -> Facts:
    """What a protocol would say of a data set."""
    return Facts(len(dataset.train.labels), len(dataset.test.labels), dataset.size, len(dataset.classes))
