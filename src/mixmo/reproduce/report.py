"""A table filled from what is there: ours, the paper's, the difference."""

import functools
import itertools
import math
import statistics
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch

from mixmo.recipes.schema import Recipe
from mixmo.reproduce import corruption, paper, scores
from mixmo.reproduce.plan import Cell, Group, Plan, derived_name, missing, needed, published
from mixmo.reproduce.store import Store
from mixmo.runs.directory import Run
from mixmo.utils.errors import UserError
from mixmo.utils.progress import track


class Where(NamedTuple):
    corrupted: Path  # CIFAR-100-C, or a folder like it
    device: torch.device  # to score on


class Filled(NamedTuple):
    """A cell with its numbers, in the unit of its column."""

    ours: float | None  # mean over seeds
    spread: float | None  # standard deviation over seeds
    seeds: int  # that there are, of those planned
    paper: paper.Figure | None

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.paper is None else self.ours - self.paper.value


class Report(NamedTuple):
    plan: Plan
    cells: dict[tuple[int, int], Filled]
    devices: dict[str, int]  # runs by the device they were made on
    notes: list[str]  # why some cells are empty though their runs are there, and what else to know


def fill(plan: Plan, store: Store, where: Where) -> Report:
    """Every cell of a table with what is there."""
    table, notes, cells = plan.table, dict[str, None](), {}
    places = list(itertools.product(range(len(table.rows)), range(len(table.columns))))
    for i, j in track(places, f"filling {table.name}"):
        cell, column = plan.cells.get((i, j)), table.columns[j]
        raw = [] if cell is None else cell_values(cell, column.of == "best", store, where, notes)
        values = [unit_of(column).factor * value for value in raw if not math.isnan(value)]
        cells[i, j] = Filled(
            ours=statistics.fmean(values) if values else None,
            spread=statistics.stdev(values) if len(values) > 1 else None,
            seeds=len(values),
            paper=printed(table, i, j),
        )
    return Report(plan, cells, devices(plan, store), list(notes))


class Absent(NamedTuple):
    needed: int  # runs
    missing: int  # of them
    stripped: int  # of these, finished but kept without the logits or weights that some cells need


def absent(plan: Plan, store: Store) -> Absent:
    runs = needed([plan], store)
    lacking = missing(runs, store)
    return Absent(len(runs), len(lacking), sum(store.find(recipe) is not None for recipe in lacking))


def unit_of(column: paper.Column) -> scores.Unit:
    unit = scores.UNITS[column.unit or scores.unit(column.score)]
    return unit if column.digits is None else unit._replace(digits=column.digits)


def heading(column: paper.Column) -> str:
    return " ".join(word for word in (column.group, scores.label(column.score), unit_of(column).name) if word)


def cell_values(cell: Cell, best: bool, store: Store, where: Where, notes: dict[str, None]) -> list[float]:
    """The score of each network or ensemble that is there; with `best`, only of the one of highest Top1.

    A run with damaged files is noted; the others are shown.
    """
    known: dict[Group, float] = {}
    for group in cell.groups:
        try:
            number = value(cell, group, store, where)
        except UserError as error:
            notes[f"Not computed: {error}."] = None
            continue
        if number is not None:
            known[group] = number
    if known and scores.source(cell.score) == "corrupted":
        images = corruption.images_of(cell.groups[0][0], where.corrupted)
        if images != corruption.ORIGINAL:
            notes[f"Corrupted images: {images}; not {corruption.ORIGINAL}, on which the paper's numbers are."] = None
    if best and known:
        top1 = cell._replace(score="top1")
        known = {g: known[g] for g in [max(known, key=lambda group: value(top1, group, store, where) or 0.0)]}
    return list(known.values())


def value(cell: Cell, group: Group, store: Store, where: Where) -> float | None:
    """The score of one network or ensemble; None if a run is not there, or not with what the score needs."""
    score, which, kind = cell.score, cell.which, scores.source(cell.score)
    if not kind:
        return scores.of_recipe(score, group[0], len(group))
    runs = [store.find(recipe, scores.files(score, which, len(group))) for recipe in group]
    whole = [run for run in runs if run is not None]
    complete = len(whole) == len(group)
    if kind == "scores" and which == "last10":
        return scores.of_epochs(score, whole[0]) if complete and len(group) == 1 else None
    if kind == "scores" and len(group) == 1:
        return scores.of_scores(score, whole[0].read_scores()[which]) if complete else None
    kept = store.derived(group, derived_name(cell))
    images = corruption.images_of(group[0], where.corrupted)
    if kept is not None and kind == "corrupted" and kept.get("images", corruption.ORIGINAL) != images:
        kept = None  # scores on other corrupted images are made anew
    if kept is None and not complete:
        return None
    if kind == "corrupted":
        found = kept or corruption.corrupted_scores(whole, which, where.corrupted, where.device)
        number: float | None = float(found["pooled"][score.split()[1]])
    elif kind == "filters":
        found = kept or scores.filter_scores(whole[0], which)
        number = scores.of_filters(score, found, cell.channel)
    else:
        found = kept or scores.ensemble_scores(whole)
        number = scores.of_scores(score, found[which])
    if kept is None:
        store.keep(group, derived_name(cell), found)
    return number


def printed(table: paper.Table, row: int, column: int) -> paper.Figure | None:
    """Return the paper's number for a cell: printed there, or in another table for the same networks and score."""
    own = table.figures.get((row, column))
    if own is not None or not table.see:
        return own
    cell = published(table.name).cells[row, column]
    unit = unit_of(table.columns[column])
    for name in table.see:
        raw = raw_figures(name).get((cell.groups[0], cell.score, cell.which))
        if raw is not None:
            return paper.Figure(*(None if number is None else number * unit.factor for number in raw))  # type: ignore[arg-type]
    return None


@functools.cache
def raw_figures(name: str) -> dict[tuple[Group, str, str], paper.Figure]:
    """What a table prints, by networks and score, in the score's own unit."""
    table, figures = paper.load(name), {}
    cells = published(name).cells
    for (i, j), figure in table.figures.items():
        if table.columns[j].of != "best":
            factor = unit_of(table.columns[j]).factor
            spread = None if figure.spread is None else figure.spread / factor
            key = (cells[i, j].groups[0], cells[i, j].score, cells[i, j].which)
            figures[key] = paper.Figure(figure.value / factor, spread)
    return figures


def devices(plan: Plan, store: Store) -> dict[str, int]:
    """Count the runs of a table by the device they were trained on."""
    used: dict[Recipe, Run] = {}
    for cell in plan.cells.values():
        for group in cell.groups if scores.source(cell.score) else ():
            found = {recipe: store.find(recipe, scores.files(cell.score, cell.which, len(group))) for recipe in group}
            used |= {recipe: run for recipe, run in found.items() if run is not None}
    names = list[str]()
    for run in used.values():
        try:
            names.append(run.read_environment()["device_name"])
        except UserError:
            names.append("an unknown device")
    return dict(sorted(Counter(names).items()))
