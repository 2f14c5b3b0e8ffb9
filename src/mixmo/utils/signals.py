"""What Ctrl-C and SIGTERM do to the command `mixmo`, also while it still imports.

PyTorch alone takes seconds, before `main` could catch anything.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none


def is_command() -> bool:
    """Whether this process was started as `mixmo` or `python -m mixmo`, not as a program that imports the package."""
    started = sys.argv[0] if getattr(sys, "argv", None) else ""
    return started == "-m" or Path(started).stem == "mixmo"  # -m: what Python has there until it knows the file


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C ends the command at once with one line and status 130; nothing is open yet that could be lost."""
    alone = threading.current_thread() is threading.main_thread()  # only it may handle signals
    ours = alone and is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
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
