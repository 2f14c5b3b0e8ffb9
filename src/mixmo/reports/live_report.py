"""A report that is updated while a run is trained."""

import threading
import time
import warnings
from pathlib import Path
from typing import Any

from mixmo.reports import vega
from mixmo.reports.build import NAME, Page
from mixmo.reports.run_data import read_run
from mixmo.reports.run_report import one_run
from mixmo.reports.run_state import STOPPED, TRAINING
from mixmo.utils.errors import first_line
from mixmo.utils.progress import say

EVERY = 30.0  # seconds between two reports, at least


class LiveReport:
    """A logger, in Lightning's interface, that writes the report of a run after scored epochs.

    A thread writes it, at most every half a minute, from the few files that a training has by then. An error is a
    warning and ends the reports, never the training.
    """

    def __init__(self, run: Path, every: float = EVERY) -> None:
        self.run, self.every, self.file = run, every, run / NAME
        self.written: float | None = None  # when the last one was begun
        self.error: str | None = None  # of the thread
        self.thread: threading.Thread | None = None

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Do nothing: the report reads the run directory."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Write the report, if the last one is old enough."""
        due = self.written is None or time.monotonic() - self.written >= self.every
        if self._failed() or not due or (self.thread is not None and self.thread.is_alive()):
            return
        if self.written is None:
            say(f"report   {self.file}, updated during training")
        self.written = time.monotonic()
        self.thread = threading.Thread(target=self._write, name="report", daemon=True)
        self.thread.start()

    def finalize(self, status: str) -> None:
        """Wait for a report that is being written; after a stop, write one that does not read itself again."""
        if self.thread is not None:
            self.thread.join()
        if status != "success" and self.written is not None and not self._failed():
            self._write(STOPPED)

    def _write(self, state: str = TRAINING) -> None:
        try:
            found = read_run(self.run, logits=False)
            reload = int(EVERY) if state == TRAINING else None
            Page(one_run(found, weights=False, state=state, reload=reload)).save(self.file)
        except Exception as error:
            self.error = first_line(error)

    def _failed(self) -> bool:
        """Whether a report could not be written. Warns once, from the main thread."""
        if self.error:
            warnings.warn(f"{self.file} cannot be written ({self.error}); training goes on", stacklevel=3)
            self.error = ""
        return self.error is not None


def available() -> bool:
    """Return whether reports can be written here."""
    return vega.installed()
