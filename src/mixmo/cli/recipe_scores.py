"""What a recipe reaches: the paper's score, and ours from the runs in results/."""

from mixmo.recipes import Recipe, named
from mixmo.recipes.reached import Reached, reached
from mixmo.reproduce import paper_scores

UNSCORED = "paper: no score with these settings; not measured here"
HOW = ("batch_size", "ghost", "precision")  # settings in which a run may differ from the paper it is compared with


def score_lines(name: str, recipe: Recipe) -> list[str]:
    """Return one line with the paper's score of a recipe, and one for each measurement of the recipe of this name."""
    published = paper_score(recipe)
    lines = [f"paper: {published}" if published else "paper: no score with these settings"]
    measured = [f"here: {_measured(entry)}" for entry in reached() if entry.recipe == name]
    if measured:
        return lines + measured
    return [f"{lines[0]}; not measured here" if published else UNSCORED]


def paper_score(recipe: Recipe) -> str | None:
    """Return the score that the paper prints for these settings, of the best epoch if it has both; None if neither.

    >>> paper_score(named("cifar100/cut-mixmo")), paper_score(named("digits/cut-mixmo"))
    ('Top1 84.38 %, NLLc 0.563', None)
    """
    printed = paper_scores.paper_score(recipe)
    if printed is None:
        return None
    scores = [f"Top1 {100 * printed.top1:.2f} %"] if printed.top1 else []
    scores += [f"NLLc {printed.nllc:.3g}"] if printed.nllc else []
    return ", ".join(scores) + ("" if printed.which == "best" else " (last epoch)")


def _measured(entry: Reached) -> str:
    words = {field: f"{value:.4g}" if isinstance(value, float) else value for field, value in entry.settings.items()}
    options = " ".join(f"--{field.replace('_', '-')} {word}" for field, word in words.items())
    method = {field: value for field, value in entry.settings.items() if field not in HOW}
    published = paper_score(named(entry.recipe).replace(**method))
    compared = f" (paper: {published})" if published else ""
    seeds = f"mean of {len(entry.seeds)} seeds" if len(entry.seeds) > 1 else f"seed {entry.seeds[0]}"
    scores = f"Top1 {entry.top1:.2f} %, NLLc {entry.nllc:.3f}{compared}"
    return f"{scores} with {options}; {seeds}, {entry.minutes:g} min on one {entry.device}"
