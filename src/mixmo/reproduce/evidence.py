"""Rows of the published tables: finished runs, those that differ in the seed only together, and ensembles of them.

A results folder has run directories, and `mixmo eval RUN RUN --json` of ensembles as files ensembles/NAME.json.
"""

import functools
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mixmo.recipes import METHODS
from mixmo.recipes.schema import FIELDS, Recipe
from mixmo.reproduce import paper
from mixmo.reproduce.report import raw_figures
from mixmo.reproduce.store import nearest_recipe
from mixmo.runs.directory import Run
from mixmo.utils.errors import UserError, first_line

# From the batch size on, fields are of the optimisation.
COMPARED = (*FIELDS[: FIELDS.index("batch_size")], "repetition")
Compared = tuple[Any, ...]


class Row(NamedTuple):
    """One method with its seeds, or an ensemble."""

    networks: list[Run]  # of the ensemble, or one for each seed
    scores: list[dict[str, Any]]  # `last` and `best`, one for each seed
    ensemble: bool

    @property
    def recipe(self) -> Recipe:
        return self.networks[0].recipe

    @property
    def label(self) -> str:
        named = list(dict.fromkeys(method_label(run.recipe) for run in self.networks))
        return f"{len(self.networks)} networks: {', '.join(named)}" if self.ensemble else named[0]

    @property
    def batch(self) -> str:
        """Batch size, and ghost batch size; of every network of an ensemble."""
        return "; ".join(dict.fromkeys(batch_label(run.recipe) for run in self.networks))

    @property
    def minutes(self) -> list[float]:
        """Minutes of the training steps of each network."""
        return [run.read_scores()["seconds"] / 60 for run in self.networks]

    def relative_costs(self, plain: "Row") -> tuple[float, float]:
        """Multiply-adds of a prediction and samples read in training, relative to another row."""
        own, other = (
            (
                sum(run.read_scores()["multiply_adds"] for run in row.networks) / len(row.scores),
                sum(run.recipe.repetition * run.recipe.epochs for run in row.networks) / len(row.scores),
            )
            for row in (self, plain)
        )
        return own[0] / other[0], own[1] / other[1]

    def values(self, which: str, score: str) -> list[float]:
        """A score of every seed; empty if it is not there."""
        found = [one.get(which, {}).get("ensemble", {}).get(score) for one in self.scores]
        return [] if None in found else found

    def diversity(self, which: str) -> list[float]:
        """The ratio-error of every seed; empty for single networks."""
        found = [one.get(which, {}).get("diversity") for one in self.scores]
        return [one["ratio_error"] for one in found if one]

    def printed(self, score: str, width: int | None = None) -> paper.Figure | None:
        """The paper's number for the best epoch, of this network or of one of another width."""
        recipe = self.recipe if width is None else self.recipe.replace(width=width)
        if self.ensemble and len({comparable(run.recipe) for run in self.networks}) > 1:
            return None
        return _figures().get((comparable(recipe), len(self.networks) if self.ensemble else 1, score))


def method_label(recipe: Recipe) -> str:
    """
    >>> from mixmo.recipes import named
    >>> method_label(named("cifar100/cut-mixmo+cutmix")), method_label(named("cifar100/vanilla"))
    ('Cut-MixMo with CutMix', 'standard network')
    """
    summary = METHODS[nearest_recipe(recipe)[1]].summary.removeprefix("one ")
    return summary if "classifier" in summary else summary.partition(":")[0]


def batch_label(recipe: Recipe) -> str:
    return f"{recipe.batch_size}, ghosts of {recipe.ghost}" if recipe.ghost else str(recipe.batch_size)


def comparable(recipe: Recipe) -> Compared:
    """The fields in which the paper's rows differ: all but those of the optimisation, batch repetition aside."""
    return tuple(getattr(recipe, name) for name in COMPARED)


@functools.cache
def _figures() -> dict[tuple[Compared, int, str], paper.Figure]:
    """What the paper prints for best epochs, by network, number of networks and score; of two numbers the first."""
    found: dict[tuple[Compared, int, str], paper.Figure] = {}
    for name in paper.names():
        for (group, score, which), figure in raw_figures(name).items():
            if which == "best":
                found.setdefault((comparable(group[0]), len(group), score), figure)
    return found


def rows(results: Path, patterns: Sequence[str]) -> list[Row]:
    """Return a row for each method below a results folder, in the order of the patterns of folders, then of methods."""
    methods, found = list(METHODS), list[Row]()
    for pattern in patterns:
        paths = sorted(results.glob(pattern))
        runs = [
            Run.open(path) for path in paths if (path / "scores.json").is_file() and (path / "recipe.yaml").is_file()
        ]
        files = [path for path in paths if path.suffix == ".json"]
        if not runs and not files:
            raise UserError(f"{results} has no finished run {pattern}; correct the pattern in the table's marker")
        groups: dict[Recipe, list[Run]] = {}
        for run in runs:
            groups.setdefault(run.recipe.replace(seed=0), []).append(run)

        def place(recipe: Recipe) -> tuple[Any, ...]:
            return methods.index(nearest_recipe(recipe)[1]), recipe.repetition, recipe.batch_size, recipe.ghost

        for recipe in sorted(groups, key=place):
            same = sorted(groups[recipe], key=lambda run: run.recipe.seed)
            found.append(Row(same, [run.read_scores() for run in same], ensemble=False))
        found += [_ensemble(results, path) for path in files]
    return found


def _ensemble(results: Path, path: Path) -> Row:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Row([Run.open(results / name) for name in content["runs"]], [content], ensemble=True)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} has no scores of an ensemble ({first_line(error)}); write it by `mixmo eval`"
        ) from error


def spread(values: Iterable[float], digits: int, factor: float = 1) -> str:
    """Mean and standard deviation over seeds.

    >>> spread([0.8149, 0.8151], 2, 100), spread([0.71], 3), spread([], 2)
    ('81.50 ± 0.01', '0.710', '')
    """
    scaled = [factor * value for value in values]
    if not scaled:
        return ""
    mean = f"{statistics.fmean(scaled):.{digits}f}"
    return f"{mean} ± {statistics.stdev(scaled):.{digits}f}" if len(scaled) > 1 else mean
