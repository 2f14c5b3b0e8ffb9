"""Resolve every cell of a table to recipes, and find those that are not trained yet."""

import functools
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from mixmo.recipes import METHODS, PROTOCOLS
from mixmo.recipes.schema import FIELDS, Recipe
from mixmo.reproduce import paper, scores
from mixmo.reproduce.scales import SCALES
from mixmo.reproduce.store import Store
from mixmo.utils.errors import UserError

Group = tuple[Recipe, ...]  # networks that predict together


class Cell(NamedTuple):
    groups: tuple[Group, ...]  # networks or ensembles over which the score is averaged
    score: str
    which: str
    channel: int | None  # of an encoder
    planned: bool  # not where the paper has a dash


class Plan(NamedTuple):
    """A table at one scale."""

    table: paper.Table
    scale: str
    settings: Mapping[str, Any]  # of --set, as far as they change this table
    seeds: int
    cells: dict[tuple[int, int], Cell]
    beyond: int  # cells that this scale leaves out


def expand(
    table: paper.Table, scale: str = "paper", settings: Mapping[str, Any] | None = None, seeds: int | None = None
) -> Plan:
    """Every cell of a table at a scale.

    A table that needs no training is the same at every scale. A setting that changes no cell is dropped, so that no
    title names it.
    """
    settings = settings or {}
    if not trained(table):
        scale, settings, seeds = "paper", {}, 1
    count = seeds or SCALES[scale].seeds or table.seeds
    cells, beyond, changing = {}, 0, set[str]()
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
            for name in settings.keys() - changing:
                others = {key: value for key, value in settings.items() if key != name}
                with suppress(UserError):  # possible only with it
                    if resolve(table.common, own, scale, others) == recipe:
                        continue
                changing.add(name)
            networks, which = {**table.common, **own}.get("networks", 1), row.which or table.which
            planned = (i, j) not in table.dashes
            cells[i, j] = Cell(groups(recipe, networks, count), column.score, which, row.channel, planned)
    changes = {name: value for name, value in settings.items() if name in changing}
    return Plan(table, scale, changes, count, cells, beyond)


@functools.cache
def published(name: str) -> Plan:
    """A table as the paper has it, with one seed."""
    return expand(paper.load(name), seeds=1)


def trained(table: paper.Table) -> bool:
    return any(scores.source(column.score) for column in table.columns)


def resolve(
    common: Mapping[str, Any], own: Mapping[str, Any], scale: str, settings: Mapping[str, Any]
) -> Recipe | None:
    """Return the recipe of a cell with seed 0, from its table, row and column; None if beyond the scale.

    What a table compares goes before `settings`, these before the scale, the scale before the protocol.
    """
    given = {"dataset": "cifar100", "method": "cut-mixmo", **common, **own}
    reduced = SCALES[scale].protocols.get(given["dataset"])
    if reduced is None:
        return None
    dataset, method = reduced.dataset or given["dataset"], METHODS[given["method"]]
    protocol = PROTOCOLS[dataset].changes
    # The method after what the whole table has in common: single networks know no batch repetition.
    compared = {**_fields(common), **method.changes, **method.on.get(dataset, {}), **_fields(own)}
    only = {"dataset": protocol["dataset"], "networks": 1}
    whole = {"ghost": 0} if "batch_size" in settings else {}  # a scale's ghosts belong to the scale's batch
    recipe = Recipe(**{**protocol, **reduced.changes, **whole, **settings, **compared, **only})
    if recipe.width <= reduced.widest or "width" not in compared:  # a width of --set is meant
        return recipe
    return recipe.replace(width=int(reduced.widest)) if reduced.narrow else None


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the recipe; numbers of the schema's type, so that equal recipes are equal."""
    return {
        key: float(value) if isinstance(getattr(Recipe, key), float) else value
        for key, value in given.items()
        if key in FIELDS
    }


def groups(recipe: Recipe, networks: int, seeds: int) -> tuple[Group, ...]:
    """The ensembles of `networks` networks whose scores are averaged, from a pool of the requested seeds.

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
