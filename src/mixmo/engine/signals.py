"""Stopping a training without losing it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it
    """Training was stopped by a signal, after saving."""


class Flag:
    """Becomes true once."""

    def __init__(self) -> None:
        self.value = False

    def __call__(self) -> bool:
        return self.value


@contextmanager
def stop_signals() -> Iterator[Flag]:
    """Ctrl-C, SIGTERM and a terminal that is closed end the step under way, not the process. A second Ctrl-C does.

    Under `nohup` the terminal may close. SIGINT always counts: shells let background jobs ignore it unasked.
    """
    flag = Flag()
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        flag.value = True
        signal.signal(number, before[number])

    try:
        for number in (signal.SIGINT, signal.SIGTERM, HANGUP):
            if number is not None and (number != HANGUP or signal.getsignal(number) != signal.SIG_IGN):
                before[number] = signal.signal(number, stop)
    except ValueError:  # not in the main thread: its owner handles signals
        pass
    try:
        yield flag
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
