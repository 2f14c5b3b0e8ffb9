"""How tables and numbers look, and where tables are printed."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mixmo.utils.text import printable_lines

T = TypeVar("T")


class Output(Console):
    """Standard output, at least `least` characters wide. Names are not parsed as markup or as terminal escapes."""

    def __init__(self, least: int) -> None:
        super().__init__(width=max(least, Console().width), highlight=False, markup=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable_lines(text), **options)

    def on_broken_pipe(self) -> None:
        """Raise what `mixmo.cli.app` expects when the reader has gone; rich would exit with an error."""
        raise BrokenPipeError


def number(value: float | None, digits: int = 4) -> str:
    """Return a number as text; a dash for NaN and infinity, which a user-defined metric may give."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def grid(*columns: str, rows: Iterable[Sequence[str]] = (), words: int = 1, title: str | None = None) -> Table:
    """Return a table without lines: the first `words` columns to the left, the others to the right."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < words else "right")
    for row in rows:
        table.add_row(*row)
    return table


def print_table(table: Table, wrap: bool = False) -> None:
    """Print a table whole, even if it is wider than 80 columns and the terminal; or wrap its cells there."""
    Output(80 if wrap else max(80, width(table))).print(table)


def width(table: Table) -> int:
    """Return the characters per line that a table takes."""
    return Output(1000).measure(table).maximum


def print_line(text: str, style: str = "") -> None:
    """Print a line, which the terminal may wrap."""
    Output(80).print(text, style=style, soft_wrap=True)


def print_json(found: Any) -> None:
    """Print plain dicts, lists and numbers."""
    print(json.dumps(found, indent=2))


def lettered(runs: Sequence[T]) -> dict[str, T]:
    """Return runs by short names, so that columns stay narrow.

    >>> lettered(["cut", "linear"])
    {'A': 'cut', 'B': 'linear'}
    """
    return {chr(ord("A") + i) if i < 26 else f"{i}:": run for i, run in enumerate(runs)}
