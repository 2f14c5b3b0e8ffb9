"""One table or figure of the paper: rows, columns, and what it prints for each pair of them.

A cell is what the table, its row and its column say together: a method on a data set, the fields of the recipe they
change, the number of networks and a score. In the files, `paper:` has one entry a column:

85.77            a number as printed, in the unit of the column
[85.77, 0.14]    with the spread printed beside it
-                the paper has a dash there: shown if the run is there, but not planned
~                the paper draws it and prints no number
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from mixmo.utils.errors import unknown

FOLDER = files("mixmo.reproduce") / "tables"
# In the order of the paper, what needs no training last.
ORDER = (
    *("main-table", "no-early-stopping", "width", "batch-repetition", "mixing", "p", "r", "alpha", "members"),
    *("encoders-classifiers", "cifar100-c", "tiny-imagenet", "memory-split", "memory-split-cutmix", "best-ensembles"),
    *("active-filters", "encoder-norms", "dynamics", "imagenet", "summary", "weights", "masks", "parameters"),
)


class Figure(NamedTuple):
    """A number that the paper prints, in the unit of its column."""

    value: float
    spread: float | None = None


class Row(NamedTuple):
    label: str
    changes: dict[str, Any]  # method, dataset, networks, fields of the recipe
    time: str | None = None  # training / inference over a vanilla network, as the paper estimates it
    line: str | None = None  # in a picture of lines: which one it is a point of
    x: float | None = None  # its position on the horizontal axis, if that is not a field
    level: bool = False  # not a point of the curve: drawn as a horizontal line
    channel: int | None = None  # of an encoder, whose number the column's score is
    which: str | None = None  # else that of the table


class Column(NamedTuple):
    score: str
    changes: dict[str, Any]
    group: str = ""  # heading above its name
    unit: str | None = None  # else that of the score
    digits: int | None = None
    of: str = "mean"  # best: the score of the best run


class Picture(NamedTuple):
    """How an entry is drawn."""

    kind: str = "dots"
    x: str | None = None
    line: str | None = None


@dataclass(frozen=True)
class Table:
    """One of the paper's tables or figures."""

    name: str
    title: str
    source: str  # table or figure of the paper
    about: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    figures: dict[tuple[int, int], Figure]  # by row and column
    dashes: frozenset[tuple[int, int]]
    picture: Picture
    common: dict[str, Any] = field(default_factory=dict)
    seeds: int = 1  # published, or 1 where the paper does not say
    which: str = "best"  # best: the best epoch by test accuracy; last: the last one; last10: mean over the last ten
    see: tuple[str, ...] = ()  # entries that print the numbers which this one draws


def names() -> list[str]:
    """Every entry, in the order of the paper."""
    return list(ORDER)


@functools.cache
def load(name: str) -> Table:
    """An entry by its name.

    >>> table = load("main-table")
    >>> table.rows[-1].label, table.columns[0].group, table.figures[20, 0].value
    ('Cut-MixMo + CutMix b=4', 'CIFAR-100', 85.77)
    """
    if name not in ORDER:
        raise unknown("table or figure", name, ORDER)
    return read(name, yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


def read(name: str, content: Mapping[str, Any]) -> Table:
    """An entry from the content of its file."""
    rows, columns = content["rows"], content["columns"]
    printed = [row.get("paper", [None] * len(columns)) for row in rows]
    cells = {(i, j): value for i, line in enumerate(printed) for j, value in enumerate(line)}
    assert all(len(line) == len(columns) for line in printed), name
    parts = {
        "picture": Picture(**content.get("picture", {})),
        "columns": tuple(Column(**_split(column, Column)) for column in columns),
        "rows": tuple(Row(**_split(row, Row)) for row in rows),
        "figures": {place: _figure(value) for place, value in cells.items() if value not in (None, "-")},
        "dashes": frozenset(place for place, value in cells.items() if value == "-"),
        "see": tuple(content.get("see", ())),
    }
    return Table(name, **{**content, **parts})


def _split(content: Mapping[str, Any], into: type[Row] | type[Column]) -> dict[str, Any]:
    """What a row or column says of itself, and beside that its changes to the recipe."""
    own = {key: value for key, value in content.items() if key in into._fields}
    return {**own, "changes": {key: value for key, value in content.items() if key not in {*own, "paper"}}}


def _figure(value: Any) -> Figure:
    return Figure(*map(float, value)) if isinstance(value, list) else Figure(float(value))
