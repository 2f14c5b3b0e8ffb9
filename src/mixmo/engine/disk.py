"""Handle a disk that is full, read-only or missing during training: warn, go on, and try again later."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mixmo.runs.checkpoint import Checkpoints
from mixmo.runs.directory import Run
from mixmo.storage.files import DiskError, remedy


class Disk:
    """Checkpoints and metrics of a run; a failed write is an error only at the end of the training."""

    def __init__(self, run: Run, checkpoints: Checkpoints) -> None:
        self.run, self.checkpoints = run, checkpoints
        self.unlogged: list[dict[str, Any]] = []  # lines that metrics.jsonl lacks
        self.warned = False

    def log(self, record: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl, or keep it until the disk can be written again."""
        self.unlogged.append(record)
        with self._warned():
            self._write_lines()

    def write(self, file: Path, text: str) -> None:
        """Write a file that training goes on without."""
        with self._warned():
            self.run.write(file.name, text)

    def settle(self) -> None:
        """Wait for the last checkpoint, and write the missing lines."""
        with self._warned():
            self.checkpoints.wait()
        with self._warned():
            self._write_lines()

    def finish(self) -> None:
        """As `settle`, but raise an error if lines cannot be written: there is no later attempt."""
        with self._warned():  # the last checkpoint is written next
            self.checkpoints.wait()
        self._write_lines()

    def _write_lines(self) -> None:
        while self.unlogged:
            self.run.add_metrics(self.unlogged[0])
            del self.unlogged[0]

    @contextmanager
    def _warned(self) -> Iterator[None]:
        """Turn a DiskError into a warning; only the first one is shown."""
        try:
            yield
        except DiskError as error:
            if not self.warned:
                self.warned = True
                what, cause = str(error).partition("; ")[0], error.__cause__
                advice = f": {remedy(cause)}" if isinstance(cause, OSError) else ""
                warnings.warn(f"{what}; training goes on and tries again{advice}", stacklevel=4)
