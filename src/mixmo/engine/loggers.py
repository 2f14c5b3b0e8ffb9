"""Log every scored epoch to CSV, TensorBoard or any Lightning logger, in addition to metrics.jsonl."""

import contextlib
import importlib
import importlib.util
import inspect
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mixmo.runs.metrics_log import flat
from mixmo.utils.errors import UserError, first_line, unknown

BUILT_IN = ("csv", "tensorboard")
FOLDER = "logs"  # of the run directory


class Logger(Protocol):
    """The part of Lightning's logger interface that is used here."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None: ...
    def log_hyperparams(self, params: dict[str, Any]) -> None: ...
    def finalize(self, status: str) -> None: ...


class Loggers:
    """The loggers of a run. They get the lines of metrics.jsonl, also after a resume."""

    def __init__(self, chosen: Sequence[str | Logger], folder: Path) -> None:
        """`chosen`: "csv", "tensorboard" (both write below `folder`/logs), the dotted path of a class, or a logger."""
        self.folder = folder / FOLDER
        self.names = [name for name in BUILT_IN if name in chosen]
        self.others = [made(logger, self.folder) for logger in chosen if logger not in BUILT_IN]
        self.ours: list[Logger] = []
        if "tensorboard" in self.names and not any(map(importlib.util.find_spec, ("tensorboard", "tensorboardX"))):
            raise UserError("logger 'tensorboard' needs another package; pip install 'mixmo[tensorboard]'")

    def start(self, hyperparameters: Mapping[str, Any], logged: Sequence[Mapping[str, Any]] = ()) -> None:
        """Begin, or continue after these lines of metrics.jsonl.

        The built-in files are written again, since the lines after the last checkpoint will come again; other loggers
        keep what they have.
        """
        for name in self.names:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self.ours = [built_in(name, self.folder) for name in self.names]
        for logger in (*self.ours, *([] if logged else self.others)):
            with self.harmless(logger), contextlib.suppress(NotImplementedError):  # a CSV file has no place for them
                logger.log_hyperparams(dict(hyperparameters))
        for line in logged:
            for logger in self.ours:
                with self.harmless(logger):
                    logger.log_metrics(numbers(line), line["step"])

    def log(self, line: Mapping[str, Any]) -> None:
        """Log one line of metrics.jsonl."""
        for logger in (*self.ours, *self.others):
            with self.harmless(logger):
                logger.log_metrics(numbers(line), line["step"])

    def finish(self, status: str = "success") -> None:
        """Flush and close with Lightning's status: "success", "failed" or "interrupted"."""
        for logger in (*self.ours, *self.others):
            with self.harmless(logger):
                logger.finalize(status)

    @contextlib.contextmanager
    def harmless(self, logger: Logger) -> Iterator[None]:
        """Leave out a logger after an error, such as a lost server; the training continues."""
        try:
            yield
        except Exception as error:
            warnings.warn(f"{type(logger).__name__} failed ({first_line(error)}) and logs nothing more", stacklevel=3)
            self.ours = [other for other in self.ours if other is not logger]
            self.others = [other for other in self.others if other is not logger]


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of metrics.jsonl by path, without the step, which loggers get separately.

    >>> numbers({"step": 3, "train": {"loss": 0.5}, "test": {"members": [{"top1": 0.1}, {"top1": 0.2}]}})
    {'train/loss': 0.5, 'test/members/0/top1': 0.1, 'test/members/1/top1': 0.2}
    """
    return {name: value for name, value in flat(line, "/") if name != "step"}


def built_in(name: str, folder: Path) -> Logger:
    """Return Lightning Fabric's logger, which writes to `folder`/`name`."""
    from lightning_fabric.loggers.csv_logs import CSVLogger
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    if name == "csv":
        return CSVLogger(folder, name=None, version=name, flush_logs_every_n_steps=1)
    return TensorBoardLogger(folder, name=None, version=name)


def made(chosen: str | Logger, folder: Path) -> Logger:
    """Return a logger as given, or made of the class at a dotted path, with the folder to write to if it takes one."""
    if not isinstance(chosen, str):
        return chosen
    module, _, name = chosen.rpartition(".")
    if not module:
        raise unknown("logger", chosen, BUILT_IN)
    try:
        kind = getattr(importlib.import_module(module), name)
        taken = [key for key in ("save_dir", "root_dir") if key in inspect.signature(kind).parameters]
        return made(kind(**{key: str(folder) for key in taken}), folder)
    except (ImportError, AttributeError, TypeError) as error:
        raise UserError(
            f"logger '{chosen}' cannot be made ({error}); give csv, tensorboard or another class"
        ) from error
