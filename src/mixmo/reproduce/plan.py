"""Which runs a table needs: every cell resolved to recipes, and of these the ones that are not there yet."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from mixmo import paper
from mixmo.errors import UserError, unknown
from mixmo.recipes import METHODS, PROTOCOLS
from mixmo.recipes.schema import FIELDS, Recipe
from mixmo.reproduce import scores
from mixmo.reproduce.scales import SCALES
from mixmo.reproduce.store import Store

Group = tuple[Recipe, ...]  # networks that predict together
FIXED = ("dataset", "networks", "seed")  # what the table or --seeds says, not --set


class Cell(NamedTuple):
    """One number of a table: the mean of a score over some networks or ensembles."""

    groups: tuple[Group, ...]
    score: str
    which: str
    channel: int | None  # of an encoder
    planned: bool  # not where the paper has a dash


class Plan(NamedTuple):
    """A table at one scale."""

    table: paper.Table
    scale: str
    settings: Mapping[str, Any]  # of --set
    seeds: int
    cells: dict[tuple[int, int], Cell]
    beyond: int  # cells that this scale leaves out


def expand(
    table: paper.Table, scale: str = "paper", settings: Mapping[str, Any] | None = None, seeds: int | None = None
) -> Plan:
    """Every cell of a table at a scale.

    What a table compares (method, row, column) goes before `settings`, these before the scale, the scale before the
    protocol. A table that needs no training is the same at every scale.
    """
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    settings = {} if settings is None else settings
    if not trained(table):
        scale, settings, seeds = "paper", {}, 1
    count = seeds or SCALES[scale].seeds or table.seeds
    cells, beyond = {}, 0
    for i, row in enumerate(table.rows):
        for j, column in enumerate(table.columns):
            own = {**row.changes, **column.changes}
            try:
                recipe = resolve(table.common, own, scale, settings)
            except UserError as error:
                raise UserError(f"{table.name}, {row.label}: {error}") from error
            if recipe is None:
                beyond += 1
                continue
            cells[i, j] = Cell(
                groups(recipe, {**table.common, **own}.get("networks", 1), count),
                column.score,
                row.which or table.which,
                row.channel,
                table.planned(i, j),
            )
    return Plan(table, scale, settings, count, cells, beyond)


@functools.cache
def published(name: str) -> Plan:
    """A table as the paper has it, with one seed."""
    return expand(paper.load(name), seeds=1)


def trained(table: paper.Table) -> bool:
    """Whether a table needs any run."""
    return any(scores.source(column.score) for column in table.columns)


def resolve(
    common: Mapping[str, Any], own: Mapping[str, Any], scale: str, settings: Mapping[str, Any]
) -> Recipe | None:
    """The recipe of a cell with seed 0, from what its table and its row and column say; None if beyond the scale."""
    said = {"dataset": "cifar100", "method": "cut-mixmo", **common, **own}
    reduced = SCALES[scale].protocols.get(said["dataset"])
    if reduced is None:
        return None
    dataset, method = reduced.dataset or said["dataset"], METHODS[said["method"]]
    protocol = PROTOCOLS[dataset].changes
    recipe = Recipe(
        **{
            **protocol,
            **reduced.changes,
            **settings,
            **_fields(common),
            # After what the whole table has in common: single networks know no batch repetition.
            **method.changes,
            **method.on.get(dataset, {}),
            **_fields(own),
            "dataset": protocol["dataset"],
            "networks": 1,
        }
    )
    if recipe.width <= reduced.widest:
        return recipe
    return recipe.replace(width=int(reduced.widest)) if reduced.narrow else None


def _fields(said: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the recipe; numbers of the schema's type, so that equal recipes are equal."""
    return {
        key: float(value) if isinstance(getattr(Recipe, key), float) else value
        for key, value in said.items()
        if key in FIELDS
    }


def groups(recipe: Recipe, networks: int, seeds: int) -> tuple[Group, ...]:
    """The ensembles of `networks` networks whose scores are averaged, from a pool of as many seeds as are asked for.

    The networks of ensembles are those of the single rows. From 3 seeds there are 3 single networks, 3 pairs, 1 triple.

    >>> [[r.seed for r in group] for group in groups(Recipe(), 2, 3)]
    [[0, 1], [1, 2], [0, 2]]
    """
    pool = max(seeds, networks)
    chosen = {tuple(sorted((first + i) % pool for i in range(networks))): None for first in range(seeds)}
    return tuple(tuple(recipe.replace(seed=seed) for seed in one) for one in chosen)


def needed(plans: Iterable[Plan], store: Store) -> dict[Recipe, set[str]]:
    """The runs that the cells need, with the files they need of them; one that exists but lacks a file counts too.

    Seed by seed, so that all rows of a table have a number before one has its spread.
    """
    runs: dict[Recipe, set[str]] = {}
    for plan in plans:
        for cell in plan.cells.values():
            if not (cell.planned and scores.source(cell.score)):
                continue
            for group in cell.groups:
                files = frozenset() if kept(cell, group, store) else scores.files(cell.score, cell.which, len(group))
                for recipe in group:
                    runs.setdefault(recipe, set()).update(files)
    return dict(sorted(runs.items(), key=lambda item: item[0].seed))


def kept(cell: Cell, group: Group, store: Store) -> bool:
    """Whether what a cell reads of these runs was derived from them before; the scores of one run are in the run."""
    own = len(group) == 1 and scores.source(cell.score) == "scores"
    return not own and store.derived(group, derived_name(cell)) is not None


def derived_name(cell: Cell) -> str:
    """Under which name what a cell reads is kept beside the runs."""
    kind = scores.source(cell.score)
    return "scores.json" if kind == "scores" else f"{kind}-{cell.which}.json"


def missing(runs: Mapping[Recipe, set[str]], store: Store) -> list[Recipe]:
    """Those still to be trained. A run of which only something derived is kept is not missed."""
    return [recipe for recipe, files in runs.items() if files and store.find(recipe, files) is None]


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """`--set FIELD=VALUE` as fields of the recipe.

    >>> read_settings(["batch_size=256", "lr=1e-1"])
    {'batch_size': 256, 'lr': 0.1}
    """
    settings: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"--set {word} has no value; write it as --set batch_size=256")
        if name in FIXED:
            raise UserError(f"--set {name} is not possible: the table says it; --seeds N sets the number of seeds")
        if name not in FIELDS:
            raise unknown("field", name, FIELDS)
        usual = getattr(Recipe, name)
        try:
            value = yaml.safe_load(text)
            if isinstance(usual, float):
                value = math.nan if value is None else float(value)
            elif isinstance(usual, tuple):
                value = tuple(map(float, value))
            elif type(value) not in ((int, type(None)) if usual is None else (type(usual),)):
                raise TypeError
        except (TypeError, ValueError, yaml.YAMLError) as error:
            such = "a whole number" if usual is None else f"such as {usual}"
            raise UserError(f"--set {word}: {name} is {such}; give a value of that kind") from error
        settings[name] = value
    return settings
