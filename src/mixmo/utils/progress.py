"""How far long work is, and how long it still takes, on standard error; for those who asked to be shown.

    with shown():
        for item in track(items, "scoring"):
            ...

The command line asks; functions called from elsewhere are silent. A terminal gets a bar for each piece of work under
way, after a second, and keeps nothing of them; elsewhere a line comes after ten seconds, and then one a minute, also
while a single step takes longer than that.
"""

import os
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self, TypeVar

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

T = TypeVar("T")
SHORT = 1.0  # seconds of work that is not worth a word
FIRST, EVERY = 10.0, 60.0  # seconds until the first line, of one piece of work or of several, and between two
TICK = 0.25  # seconds between two looks at the works

_board: ContextVar["Board | None"] = ContextVar("board", default=None)  # where work is shown, if anywhere
_lock = threading.RLock()  # of all boards
if hasattr(os, "register_at_fork"):  # a process must not begin with a stream that a thread was just writing to
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class Work:
    """A piece of work: of `total` parts, if that is known, so many are `done`. Shown while its `with` lasts."""

    def __init__(self, doing: str, total: float | None = None, done: float = 0) -> None:
        self.doing, self.total, self.done, self.before = doing, total, done, done
        self.began = self.counted = time.monotonic()
        self.counts = 0
        self.board: Board | None = None

    def __enter__(self) -> Self:
        self.board = _board.get()
        if self.board is not None:
            self.began = self.counted = time.monotonic()
            self.board.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.board is not None:
            self.board.end(self)

    def advance(self, parts: float = 1) -> None:
        self.counts += 1  # first: another thread reads it where there is something done
        self.counted = time.monotonic()
        self.done += parts

    def what(self) -> str:
        return self.doing

    def amount(self) -> str:
        """How much is done."""
        if self.total is None:
            return f"{clock(time.monotonic() - self.began)} so far"
        return f"{self.done:,.0f} of {self.total:,.0f}"

    def left(self) -> str:
        """The time left by the pace so far; nothing before the first part."""
        if self.total is None or self.done <= self.before:
            return ""
        spent, since = self.counted - self.began, time.monotonic() - self.counted
        usual = spent / self.counts  # between two counts; what takes longer this time may do so again
        each = (spent + max(0.0, since - usual)) / (self.done - self.before)
        return f"{clock(max(0.0, each * (self.total - self.done) - min(since, usual)))} left"

    def tail(self) -> str:
        """What stands behind its bar."""
        return f"{self.amount()}  {self.left()}".rstrip()

    def line(self) -> str:
        """What is said of it where there is no bar."""
        return f"{self.what()}: " + ", ".join(filter(None, (self.amount(), self.left())))


class Bytes(Work):
    """Work that is counted in bytes."""

    def amount(self) -> str:
        total = "" if self.total is None else f" of {self.total / 1e6:,.1f}"
        return f"{self.done / 1e6:,.1f}{total} MB"


def track(items: Collection[T], doing: str) -> Iterator[T]:
    """The items one after the other, as a piece of work; an item is done when the next is asked for.

    >>> list(track("ab", "spelling"))
    ['a', 'b']
    """
    with Work(doing, len(items)) as work:
        for item in items:
            yield item
            work.advance()


@contextmanager
def shown(show: bool = True) -> Iterator[None]:
    """Show the long work that is done within, or do not."""
    outer = _board.get()
    board = (outer or Board()) if show else None
    token = _board.set(board)
    try:
        yield
    finally:
        _board.reset(token)
        if board is not None and board is not outer:
            board.close()


def say(text: str) -> None:
    """Print a line on standard error, where progress is shown."""
    if (board := _board.get()) is not None:
        board.say(text)


class Lasting(Console):
    """Standard error, as long as somebody listens. A training does not end because its terminal has."""

    def on_broken_pipe(self) -> None:
        self.quiet = True

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError:
            self.quiet = True


class Board:
    """The works under way, the outermost first. A thread looks at them, so that they need not stop to be seen."""

    def __init__(self) -> None:
        # The stream as it is now: libraries are kept quiet by giving them another.
        self.console = Lasting(file=sys.stderr, stderr=True)
        self.live = self.console.is_terminal and not self.console.is_dumb_terminal
        self.works: list[Work] = []
        self.next = time.monotonic() + FIRST  # when a line is due
        self.bars: Live | None = None
        self.lock = _lock
        self.ended = threading.Event()
        self.above: list[Above] = []

    def begin(self, work: Work) -> None:
        with self.lock:
            self.works.append(work)
            if len(self.works) > 1:
                return
            if self.live:
                self.above = [Above(self, name) for name in ("stderr", "stdout") if getattr(sys, name).isatty()]
        self.ended = threading.Event()
        threading.Thread(target=self.watch, args=(self.ended,), daemon=True).start()

    def end(self, work: Work) -> None:
        with self.lock:
            if work in self.works:
                self.works.remove(work)
            if not self.works:
                self.close()

    def close(self) -> None:
        """Nothing is left on the terminal, of works neither that nobody ended."""
        self.ended.set()
        with self.lock:
            self.works.clear()
            self.erase()
            for above in self.above:
                above.remove()

    def watch(self, ended: threading.Event) -> None:
        while not ended.wait(TICK):
            with self.lock:
                if not ended.is_set():
                    self.tick()

    def tick(self) -> None:
        """Whatever is due now."""
        told = self.told()
        if told and not self.live and time.monotonic() >= self.next:
            self.say("; ".join(work.line() for work in told))
        if told and self.live and not any(above.midline for above in self.above):
            if self.bars is None:
                self.bars = Live(
                    get_renderable=self.drawn,
                    console=self.console,
                    auto_refresh=False,
                    transient=True,
                    redirect_stdout=False,  # where results go, perhaps into a file
                    redirect_stderr=False,
                )
                self.bars.start()
            self.bars.refresh()

    def say(self, text: str) -> None:
        """A line at once, above the bars."""
        with self.lock:
            self.erase()
            self.console.print(Text(text), soft_wrap=True)
            self.next = time.monotonic() + EVERY

    def told(self) -> list[Work]:
        """The works that are not short; of one that has a single part, that part, if it is a work too."""
        long = [work for work in self.works if time.monotonic() >= work.began + SHORT]
        return [work for work in long if work.total != 1 or work is long[-1]]

    def drawn(self) -> Table:
        grid = Table.grid(padding=(0, 1))
        for column in ("what", "bar", "tail"):
            grid.add_column(column, no_wrap=True)
        works = self.told()
        texts = [(work.what(), work.tail()) for work in works]
        left = self.console.width - 2 - sum(max(map(len, column)) for column in zip(*texts, strict=True))
        for work, (what, tail) in zip(works, texts, strict=True):
            # It pulses where there is no total.
            bar = ProgressBar(total=work.total, completed=work.done, width=max(5, min(30, left)))
            grid.add_row(Text(what), bar, Text(tail))
        return grid

    def erase(self) -> None:
        """Take the bars away, until the next tick."""
        bars, self.bars = self.bars, None
        if bars is not None:
            bars.stop()


class Above:
    """A stream of the terminal while bars are on it: what is written there comes above them, as it is."""

    def __init__(self, board: Board, name: str) -> None:
        self.board, self.name, self.stream = board, name, getattr(sys, name)
        self.midline = False  # a bar would be drawn behind words that wait for their end
        setattr(sys, name, self)

    def write(self, text: str) -> int:
        with self.board.lock:
            self.board.erase()
            self.midline = not text.endswith("\n") if text else self.midline
            return int(self.stream.write(text))

    def remove(self) -> None:
        if getattr(sys, self.name) is self:
            setattr(sys, self.name, self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def clock(seconds: float) -> str:
    """
    >>> clock(59.6), clock(3700)
    ('1:00', '1:01:40')
    """
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
