"""mixmo plot KIND [ARGUMENTS] [--out FILE] [--force]"""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mixmo import data
from mixmo.cli.arguments import add_recipe, parse, parser, recipe_of
from mixmo.cli.parser import Parser
from mixmo.plots import dynamics, filters, loss_weights, masks, pairs
from mixmo.plots.style import check_target, matplotlib, save
from mixmo.runs.directory import Run
from mixmo.utils.errors import UserError, unknown


class Kind(NamedTuple):
    """One picture."""

    summary: str
    add: Callable[[Parser, list[str]], None]  # its own arguments
    draw: Callable[[Namespace], Any]


def add_masks(into: Parser, arguments: list[str]) -> None:
    into.add_argument("--dataset", default="digits", help="where the two images come from (`mixmo list datasets`)")
    into.add_argument("--images", nargs=2, type=int, metavar=("I", "J"), help="which two test images")
    add_data(into)


def draw_masks(parsed: Namespace) -> Any:
    return masks.draw(data.load(parsed.dataset, parsed.data, train=False), parsed.images, parsed.draw)


def add_pairs(into: Parser, arguments: list[str]) -> None:
    if not arguments:
        raise UserError("say which recipe to draw a batch of, such as cifar100/cut-mixmo (`mixmo list recipes`)")
    add_recipe(into, arguments)
    add_data(into)


def draw_pairs(parsed: Namespace) -> Any:
    recipe = recipe_of(parsed)
    return pairs.draw(recipe, data.load(recipe.dataset, parsed.data, val=recipe.val), parsed.draw)


def add_data(into: Parser) -> None:
    into.add_argument("--data", type=Path | None, default=None, help="folder of the data sets; else MIXMO_DATA or data")
    into.add_argument("--draw", type=int, default=0, help="another number gives other random draws")


def add_runs(into: Parser, arguments: list[str]) -> None:
    into.add_argument("runs", nargs="+", type=Path, help="run directories")


KINDS = {
    "masks": Kind("every mask at several ratios, on two images", add_masks, draw_masks),
    "weights": Kind("the loss weights w_r over the ratio", lambda *_: None, lambda _: loss_weights.draw()),
    "pairs": Kind("a batch of a recipe after each stage", add_pairs, draw_pairs),
    "dynamics": Kind("scores of runs by epoch", add_runs, lambda parsed: dynamics.draw(Run.open_each(parsed.runs))),
    "filters": Kind(
        "norms of the encoders' filters", add_runs, lambda parsed: filters.draw(Run.open_each(parsed.runs))
    ),
}


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:10} {kind.summary}" for name, kind in KINDS.items()]
        print("usage: mixmo plot KIND ...\n\n" + "\n".join(lines) + "\n\n`mixmo plot KIND --help` tells more.")
        return
    name = arguments[0]
    if name.startswith("-"):
        raise UserError(f"{name} comes too early; say first what to draw: mixmo plot {'|'.join(KINDS)}")
    if name not in KINDS:
        raise unknown("picture", name, KINDS)
    kind = KINDS[name]
    into = parser(f"plot {name}", f"Draw {kind.summary}.")
    kind.add(into, arguments[1:])
    into.add_argument("--out", type=Path, default=Path(f"{name}.png"), help="png, pdf or svg file to write")
    into.add_argument("--force", action="store_true", help="replace the file if there is one")
    parsed = parse(into, arguments[1:])
    if not 0 <= getattr(parsed, "draw", 0) < 2**63:
        raise UserError(f"--draw {parsed.draw}; take a number from 0 to 2**63 - 1")
    matplotlib()
    check_target(parsed.out, parsed.force)
    print(save(kind.draw(parsed), parsed.out, parsed.force))
