"""What Ctrl-C, SIGTERM and SIGHUP do to the command `mixmo`, also while it still imports."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none


@contextmanager
def stoppable() -> Iterator[None]:
    """End the process at Ctrl-C with one line and status 130. For imports: nothing is open that could be lost."""
    alone = threading.current_thread() is threading.main_thread()  # only it may handle signals
    ours = alone and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    # Not an exception: some extension modules swallow those that come while they are imported.
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):  # a closed stream
            os.write(2, b"mixmo: interrupted\n")
    os._exit(130)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, as `timeout` and clusters send it, is taken like Ctrl-C: it tidies up, and shows what was found."""
    alone = threading.current_thread() is threading.main_thread()
    if not alone or signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
