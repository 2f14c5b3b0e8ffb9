"""mixmo plot KIND [ARGUMENTS] [--out FILE] [--force]"""

from argparse import Namespace
from pathlib import Path
from typing import Annotated, Any

from mixmo import data
from mixmo.cli.arguments import add_recipe, parse, parser, recipe_of, subcommand
from mixmo.plots import dynamics, filters, loss_weights, masks, pairs
from mixmo.plots.style import check_target, matplotlib, save
from mixmo.recipes.fields import at_least
from mixmo.runs.directory import Run

KINDS = {
    "masks": "every mask at several ratios, on two images",
    "weights": "the loss weights w_r over the ratio",
    "pairs": "a batch of a recipe after each stage",
    "dynamics": "scores of runs by epoch",
    "filters": "norms of the encoders' filters",
}


def main(arguments: list[str]) -> None:
    kind, words = subcommand("plot", "KIND", KINDS, arguments)
    into = parser(f"plot {kind}", f"Draw {KINDS[kind]}.")
    if kind == "masks":
        into.add_argument("--dataset", default="digits", help="where the two images come from (`mixmo list datasets`)")
        into.add_argument(
            "--images", nargs=2, type=Annotated[int, at_least(0)], metavar=("I", "J"), help="which two test images"
        )
    if kind == "pairs":
        add_recipe(into, words)
    if kind in ("masks", "pairs"):
        into.add_argument("--data", type=Path, help="folder of the data sets; else MIXMO_DATA or data")
        into.add_argument(
            "--draw", type=Annotated[int, at_least(0)], default=0, help="another number gives other random draws"
        )
    if kind in ("dynamics", "filters"):
        into.add_argument("runs", nargs="+", type=Path, help="run directories")
    into.add_argument("--out", type=Path, default=Path(f"{kind}.png"), help="png, pdf or svg file to write")
    into.add_argument("--force", action="store_true", help="replace the file if there is one")
    parsed = parse(into, words)
    matplotlib()
    check_target(parsed.out, parsed.force)
    print(save(draw(kind, parsed), parsed.out, parsed.force))


def draw(kind: str, parsed: Namespace) -> Any:
    """Return the figure."""
    if kind == "masks":
        return masks.draw(data.load(parsed.dataset, parsed.data, train=False), parsed.images, parsed.draw)
    if kind == "weights":
        return loss_weights.draw()
    if kind == "pairs":
        recipe = recipe_of(parsed)
        return pairs.draw(recipe, data.load(recipe.dataset, parsed.data, val=recipe.val), parsed.draw)
    runs = Run.open_each(parsed.runs)
    return dynamics.draw(runs) if kind == "dynamics" else filters.draw(runs)
