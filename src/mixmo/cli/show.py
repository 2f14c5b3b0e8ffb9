"""mixmo show RECIPE [--field value ...]"""

import shutil
import textwrap
from contextlib import suppress
from pathlib import Path

import torch
import yaml

from mixmo import data
from mixmo.cli.arguments import add_recipe, parse, parser, recipe_of
from mixmo.cli.recipe_scores import score_lines
from mixmo.data.folder import PREFIX
from mixmo.engine import Runtime
from mixmo.engine.display import pace
from mixmo.engine.estimate import estimate
from mixmo.models import multiply_adds, parameters
from mixmo.recipes import PROTOCOLS, Recipe, summary
from mixmo.recipes.fast import SUFFIX
from mixmo.recipes.finetune import NAME as FINETUNING
from mixmo.recipes.protocols import FACTS, Facts
from mixmo.utils.errors import UserError
from mixmo.utils.text import duration


def main(arguments: list[str]) -> None:
    into = parser(
        "show",
        "All fields of a recipe, its scores (best epoch by test accuracy), parameters, multiply-adds, steps and "
        "training time. The output can be given to --config.",
    )
    add_recipe(into, arguments)
    into.add_argument("--device", default="auto", help="device to measure the time on: cpu, cuda, cuda:1, ...")
    into.add_argument("--data", type=Path, help="folder of the data sets, for one whose size is not known beforehand")
    into.add_argument("--time", type=bool, default=True, help="measure a few training steps on random images")
    parsed = parse(into, arguments)
    recipe, device = recipe_of(parsed), Runtime(device=parsed.device).resolve()
    facts, problem = FACTS.get(recipe.dataset), ""
    if facts is None:
        try:
            facts = read_facts(recipe, parsed.data)
        except UserError as error:
            if not recipe.dataset.startswith(PREFIX):  # else the images may be elsewhere
                raise
            problem = str(error)
    costs = None if facts is None else cost(recipe, facts)
    dataset, _, method = parsed.recipe.partition("/")
    protocol = "" if method.endswith(SUFFIX) or dataset == FINETUNING else f"; {PROTOCOLS[dataset].summary}"
    comment(f"{parsed.recipe}: {summary(parsed.recipe)}{protocol}")
    for line in score_lines(parsed.recipe, recipe):
        comment(line)
    print(yaml.safe_dump(recipe.to_dict(), sort_keys=False), end="")
    if facts is None or costs is None:
        comment(f"cost not known without the data set: {problem}")
        return
    weights, operations = costs
    each = f", in each of {recipe.networks} networks" if recipe.networks > 1 else ""
    comment(f"{weights:,} parameters, {operations / 1e9:.4f} G multiply-adds per prediction{each}")
    measured = estimate(recipe, facts, device, measure=parsed.time)
    steps = f"{measured.steps:,} steps, {measured.steps_per_epoch:,} per epoch"
    comment(f"{steps}; learning rate {recipe.rate:g} after the warm-up")
    if measured.seconds is not None:
        time, speed = duration(measured.seconds * recipe.networks), pace(recipe.batch_size / measured.step_seconds)
        comment(f"training time about {time} on this {measured.device} ({speed}), without evaluation")


def read_facts(recipe: Recipe, root: Path | None) -> Facts:
    """Return the size of a data set from its files, without decoding them."""
    dataset = data.load(recipe.dataset, root, stream=True, workers=0, val=recipe.val)
    return Facts(len(dataset.train.labels), len(dataset.test.labels), dataset.size, len(dataset.classes))


def cost(recipe: Recipe, facts: Facts) -> tuple[int, int]:
    """Return the parameters and the multiply-adds of a network, if possible without time and memory for its weights."""
    seen = recipe.seen(facts.size)
    if not recipe.is_backbone:
        with suppress(Exception), torch.device("meta"):  # a family of the user may need numbers
            net = recipe.network(facts.classes, seen)
            return parameters(net), multiply_adds(net, seen)
    net = recipe.network(facts.classes, seen)
    return parameters(net), multiply_adds(net, seen)


def comment(text: str) -> None:
    """Print a YAML comment, wrapped to the width of the terminal: the output can be a --config file."""
    width = shutil.get_terminal_size().columns
    print(textwrap.fill(text, width, initial_indent="# ", subsequent_indent="#     ", break_on_hyphens=False))
