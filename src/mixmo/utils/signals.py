"""Ctrl-C, SIGTERM and SIGHUP: while the command imports, while it works, while it trains."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any

HANGUP = getattr(signal, "SIGHUP", None)  # not on Windows


def stoppable() -> AbstractContextManager[None]:
    """End the command at once on Ctrl-C, with one line and status 130; for its imports, which take seconds."""
    return _handled(signal.SIGINT, _end, only_if=signal.default_int_handler)


def terminated_as_interrupted() -> AbstractContextManager[None]:
    """Treat SIGTERM, as `timeout` and clusters send it, like Ctrl-C."""
    return _handled(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def _handled(number: int, handler: Callable[[int, FrameType | None], Any], only_if: Any = None) -> Iterator[None]:
    """Replace a signal's handler, unless it is ignored or not `only_if`; only the main thread may do so."""
    before, main = signal.getsignal(number), threading.current_thread() is threading.main_thread()
    if not main or before == signal.SIG_IGN or only_if not in (None, before):
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _end(number: int, frame: FrameType | None) -> None:
    # Not an exception: some extension modules swallow it while they are imported.
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):  # a closed stream
            os.write(2, b"mixmo: interrupted\n")
    os._exit(130)


class Stopped(Exception):  # noqa: N818 - not an error
    """Training was stopped by a signal, after saving."""


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Catch Ctrl-C, SIGTERM and SIGHUP; yield whether one came. A second Ctrl-C ends the process.

    Under `nohup`, SIGHUP stays ignored. SIGINT is always caught, as shells ignore it for background jobs.
    """
    caught: list[int] = []
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        signal.signal(number, before[number])

    with suppress(ValueError):  # not in the main thread, which handles signals
        for number in (signal.SIGINT, signal.SIGTERM, HANGUP):
            if number is not None and (number != HANGUP or signal.getsignal(number) != signal.SIG_IGN):
                before[number] = signal.signal(number, stop)
    try:
        yield lambda: bool(caught)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
