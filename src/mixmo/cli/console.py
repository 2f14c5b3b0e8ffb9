"""How tables look, and where they are printed."""

import math

from rich.console import Console
from rich.table import Table


class Output(Console):
    """Standard output, at least so many characters wide. Brackets in a name are no markup."""

    def __init__(self, least: int) -> None:
        super().__init__(width=max(least, Console().width), highlight=False, markup=False)

    def on_broken_pipe(self) -> None:
        """The reader has seen enough, which is no error; rich would exit with one."""
        raise BrokenPipeError


def number(value: float | None, digits: int = 4) -> str:
    """A dash for what is none, as a metric of a user's own may give."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def grid(*columns: str, words: int = 1, title: str | None = None) -> Table:
    """A table without lines. The first columns, so many, hold words; the others numbers, which end alike."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < words else "right")
    return table
