"""The score that the paper prints for a recipe."""

import functools
from typing import NamedTuple

from mixmo.recipes.protocols import PROTOCOLS
from mixmo.recipes.schema import Recipe
from mixmo.reproduce import paper
from mixmo.reproduce.report import raw_figures


class PaperScore(NamedTuple):
    top1: float | None  # a share
    nllc: float | None
    which: str  # "best" or "last" epoch


def paper_score(recipe: Recipe) -> PaperScore | None:
    """Return the paper's score for these settings, of the best epoch if it has both; None if neither."""
    single = recipe.replace(networks=1, precision="fp32")
    group = tuple(single.replace(seed=seed) for seed in range(recipe.networks))
    for which in ("best", "last"):
        top1, nllc = (_printed().get((group, score, which)) for score in ("top1", "nllc"))
        if top1 or nllc:
            return PaperScore(top1 and top1.value, nllc and nllc.value, which)
    return None


def at_published_batch(recipe: Recipe) -> Recipe:
    """Return the recipe with the batch size of its data set's protocol, without ghost batches."""
    protocols = {each.changes["dataset"]: each.changes for each in PROTOCOLS.values()}
    batch_size = protocols.get(recipe.dataset, {}).get("batch_size", Recipe.batch_size)
    whole = batch_size % recipe.repetition == 0
    return recipe.replace(batch_size=batch_size, ghost=0) if whole else recipe


@functools.cache
def _printed() -> dict[tuple[tuple[Recipe, ...], str, str], paper.Figure]:
    """Return every number of the paper's tables; of a number in several tables, the one in the first."""
    return {key: figure for name in reversed(paper.names()) for key, figure in raw_figures(name).items()}
