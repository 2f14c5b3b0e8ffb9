"""How tables and numbers look, and where tables are printed."""

import math

from rich.console import Console
from rich.table import Table


class Output(Console):
    """Standard output, at least `least` characters wide. Brackets in a name are no markup."""

    def __init__(self, least: int) -> None:
        super().__init__(width=max(least, Console().width), highlight=False, markup=False)

    def on_broken_pipe(self) -> None:
        """Raise what `mixmo.cli.app` expects when the reader has gone; rich would exit with an error."""
        raise BrokenPipeError


def number(value: float | None, digits: int = 4) -> str:
    """Return a number as text; a dash for NaN and infinity, which a user-defined metric may give."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def grid(*columns: str, words: int = 1, title: str | None = None) -> Table:
    """Return an empty table without lines: the first `words` columns to the left, the others to the right."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < words else "right")
    return table


def duration(seconds: float) -> str:
    """Return a time with its unit.

    >>> duration(40), duration(90), duration(5000), duration(1e6), duration(1e8)
    ('40 s', '1.5 min', '1.4 h', '11.6 days', '3.2 years')
    """
    for unit, length, least in (("years", 31_536_000, 1), ("days", 86_400, 2), ("h", 3_600, 1), ("min", 60, 1)):
        if seconds >= least * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.0f} s"
