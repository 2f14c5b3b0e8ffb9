"""How far a long piece of work is, and how long it still takes, on standard error."""

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

T = TypeVar("T")
LINE_EVERY = 30.0  # seconds between two lines, where there is no terminal


def track(items: Sequence[T], doing: str) -> Iterator[T]:
    """The items one after the other: a bar with the time left on a terminal, now and then a line elsewhere."""
    console = Console(stderr=True)
    began = said = time.monotonic()
    with bar(console) as progress:
        task = progress.add_task(doing, total=len(items))
        for done, item in enumerate(items):
            now = time.monotonic()
            if done and not console.is_terminal and now - said > LINE_EVERY:
                left = (now - began) / done * (len(items) - done)
                console.print(f"{doing}: {done} of {len(items)}, {left:.0f} s left", highlight=False, soft_wrap=True)
                said = now
            yield item
            progress.advance(task)


def bar(console: Console, *amounts: ProgressColumn) -> Progress:
    """A bar that leaves nothing behind, and is not there without a terminal; `amounts` done are by default counted."""
    left = (TextColumn("{task.description}"), BarColumn(), *(amounts or (MofNCompleteColumn(),)))
    return Progress(*left, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)
