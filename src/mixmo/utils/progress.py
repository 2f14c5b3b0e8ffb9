"""Progress of long work and the time left, on standard error, inside `with shown():` only.

On a terminal, one bar per piece of work, which disappears at its end; elsewhere, one line per minute.
"""

import os
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Self, TypeVar

from mixmo.utils.text import printable, printable_lines

T = TypeVar("T")
SHORT = 1.0  # seconds of work that is not shown
FIRST, EVERY = 10.0, 60.0  # seconds until the first line, and between two
TICK = 0.25  # seconds between two updates
BAR = 30  # columns of a bar, at most

_board: ContextVar["Board | None"] = ContextVar("board", default=None)
_lock = threading.RLock()  # of all boards
if hasattr(os, "register_at_fork"):  # a new process must not inherit a lock that another thread holds
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class Work:
    """A piece of work, shown inside its `with`: `done` of `total` parts, if the total is known."""

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

    def __exit__(self, *error: object) -> None:
        if self.board is not None:
            self.board.end(self)

    def advance(self, parts: float = 1) -> None:
        self.counts += 1  # first: another thread reads it as soon as `done` is positive
        self.counted = time.monotonic()
        self.done += parts

    def what(self) -> str:
        """Return the text before the bar."""
        return self.doing

    def amount(self) -> str:
        if self.total is None:
            return f"{clock(time.monotonic() - self.began)} so far"
        return f"{self.done:,.0f} of {self.total:,.0f}"

    def left(self) -> str:
        """Return the time left at the speed so far; empty before the first part."""
        if self.total is None or self.done <= self.before:
            return ""
        spent, since = self.counted - self.began, time.monotonic() - self.counted
        usual = spent / self.counts  # between two counts; a part that takes longer changes the estimate
        each = (spent + max(0.0, since - usual)) / (self.done - self.before)
        return f"{clock(max(0.0, each * (self.total - self.done) - min(since, usual)))} left"

    def tail(self) -> str:
        """Return the text after the bar."""
        return f"{self.amount()}  {self.left()}".rstrip()

    def line(self) -> str:
        """Return the line that is written where there is no terminal."""
        return f"{self.what()}: " + ", ".join(filter(None, (self.amount(), self.left())))


class Bytes(Work):
    def amount(self) -> str:
        total = "" if self.total is None else f" of {self.total / 1e6:,.1f}"
        return f"{self.done / 1e6:,.1f}{total} MB"


def track(items: Collection[T], doing: str) -> Iterator[T]:
    with Work(doing, len(items)) as work:
        for item in items:
            yield item
            work.advance()


@contextmanager
def shown(show: bool = True) -> Iterator[None]:
    """Show the progress of long work inside, or hide it."""
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


class Board:
    """The works in progress, the outermost first; a thread writes them to standard error."""

    def __init__(self) -> None:
        self.stream = sys.stderr  # as it is now: libraries are silenced by replacing it
        self.live = self.stream.isatty() and os.environ.get("TERM", "") != "dumb"
        self.works: list[Work] = []
        self.next = time.monotonic() + FIRST  # when a line is due
        self.drawn = 0  # lines of bars on the terminal
        self.ended = threading.Event()
        self.above: list[Above] = []

    def begin(self, work: Work) -> None:
        with _lock:
            self.works.append(work)
            if len(self.works) > 1:
                return
            if self.live:
                self.above = [Above(self, name) for name in ("stderr", "stdout") if getattr(sys, name).isatty()]
        self.ended = threading.Event()
        threading.Thread(target=self.watch, args=(self.ended,), daemon=True).start()

    def end(self, work: Work) -> None:
        with _lock:
            if work in self.works:
                self.works.remove(work)
            if not self.works:
                self.close()

    def close(self) -> None:
        """Erase the bars, also of works that were never ended."""
        self.ended.set()
        with _lock:
            self.works.clear()
            self.write()
            for above in self.above:
                if getattr(sys, above.name) is above:
                    setattr(sys, above.name, above.stream)

    def watch(self, ended: threading.Event) -> None:
        while not ended.wait(TICK):
            with _lock:
                if not ended.is_set():
                    self.tick()

    def tick(self) -> None:
        """Update the bars, or write a line if one is due."""
        # Of a work with a single part, only that part is shown, if it is a work too.
        long = [work for work in self.works if time.monotonic() >= work.began + SHORT]
        long = [work for work in long if work.total != 1 or work is long[-1]]
        if not long:
            return
        if not self.live and time.monotonic() >= self.next:
            self.say("; ".join(work.line() for work in long))
        if self.live and not any(above.midline for above in self.above):
            lines = bars(long, columns(self.stream))
            self.write("".join(f"{line}\n" for line in lines), len(lines))

    def say(self, text: str) -> None:
        with _lock:
            self.write(f"{printable_lines(text)}\n")
            self.next = time.monotonic() + EVERY

    def write(self, text: str = "", drawn: int = 0) -> None:
        """Write in place of the bars; the last `drawn` lines are bars again."""
        erasure, self.drawn = "\x1b[1A\x1b[2K" * self.drawn, drawn
        with suppress(OSError):  # training goes on when its terminal is closed
            if erasure or text:
                self.stream.write(erasure + text)
                self.stream.flush()


class Above:
    """A stream of the terminal while there are bars: what is written to it appears above them, unchanged."""

    def __init__(self, board: Board, name: str) -> None:
        self.board, self.name, self.stream = board, name, getattr(sys, name)
        self.midline = False  # no bar is drawn behind an unfinished line
        setattr(sys, name, self)

    def write(self, text: str) -> int:
        with _lock:
            self.board.write()
            self.midline = not text.endswith("\n") if text else self.midline
            return int(self.stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def bars(works: Collection[Work], width: int) -> list[str]:
    """Draw works in `width` columns: text, bar, amount; in two lines, without a bar, where these are too long.

    >>> bars([Work("scoring", 40, 10)], 40)
    ['scoring ━━━━━━                 10 of 40']
    >>> bars([Work("scoring", 40, 10)], 16)
    ['scoring', '10 of 40']
    """
    what, tail = (max(map(len, texts)) for texts in zip(*((w.what(), w.tail()) for w in works), strict=True))
    room = min(BAR, width - what - tail - 3)
    lines = []
    for work in works:
        if what + tail + 2 > width:
            lines += [work.what(), work.tail()]
        else:
            share = 0.0 if not work.total else min(1.0, work.done / work.total)
            bar = f"{'━' * round(share * room):{room}} " if room > 0 else ""
            lines.append(f"{work.what():{what}} {bar}{work.tail()}")
    return [printable(line)[: width - 1] for line in lines]  # a line of the whole width could wrap


def columns(stream: Any) -> int:
    with suppress(OSError, ValueError):
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns)
    return 80


def clock(seconds: float) -> str:
    """Format a duration.

    >>> clock(59.6), clock(3700)
    ('1:00', '1:01:40')
    """
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
