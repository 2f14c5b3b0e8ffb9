"""Standard output and standard error of the command: closed or full ones end no work, warnings are sentences."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from mixmo.utils.text import printable_lines


@contextmanager
def prepared_streams() -> Iterator[None]:
    """Make both streams safe to write to, and format warnings as sentences."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # characters that a terminal does not have
    usual, warnings.formatwarning = warnings.formatwarning, as_sentence
    stderr, sys.stderr = sys.stderr, Unfailing(sys.stderr)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Image size \(\d+ pixels\) exceeds limit")  # Pillow's; ours is lower
            yield
    finally:
        warnings.formatwarning, sys.stderr = usual, stderr
        flush_or_discard(sys.stderr)


def flush_or_discard(stream: TextIO) -> None:
    """Flush a stream. If that fails, discard the rest: Python would try again, and fail, when the process ends."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Unfailing:
    """Standard error that ignores its own errors: a closed terminal or a full disk must not end hours of work."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def as_sentence(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning of this package without its place in the code; those of other libraries have it."""
    ours = category.__module__.startswith("mixmo.")  # whatever decorator its place in the code is in
    if ours or Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"mixmo: {printable_lines(str(message))}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"
