"""Log every scored epoch to CSV, TensorBoard or any Lightning logger, in addition to metrics.jsonl."""

import contextlib
import importlib
import importlib.util
import inspect
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mixmo.runs.metrics_log import flat
from mixmo.surgery.user_models import file_module
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
        """Begin, or continue after these lines of metrics.jsonl: built-in files are written again, others go on."""
        for name in self.names:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self.ours = [built_in(name, self.folder) for name in self.names]
        later, self.others = (self.others, []) if logged else ([], self.others)
        self.call("log_hyperparams", dict(hyperparameters))
        for line in logged:
            self.log(line)
        self.others += later

    def log(self, line: Mapping[str, Any]) -> None:
        self.call("log_metrics", numbers(line), line["step"])

    def finish(self, status: str = "success") -> None:
        """Flush and close with Lightning's status: "success", "failed" or "interrupted"."""
        self.call("finalize", status)

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of every logger. After an error, such as a lost server, a logger is left out."""
        for logger in (*self.ours, *self.others):
            try:
                with contextlib.suppress(NotImplementedError):  # a CSV file has no place for hyperparameters
                    getattr(logger, method)(*arguments)
            except Exception as error:
                name = type(logger).__name__
                warnings.warn(f"{name} failed ({first_line(error)}) and logs nothing more", stacklevel=2)
                self.ours = [other for other in self.ours if other is not logger]
                self.others = [other for other in self.others if other is not logger]


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of metrics.jsonl by path, without the step, which loggers get separately."""
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
        kind = getattr(file_module(module) or importlib.import_module(module), name)
        taken = [key for key in ("save_dir", "root_dir") if key in inspect.signature(kind).parameters]
        return made(kind(**{key: str(folder) for key in taken}), folder)
    except (ImportError, AttributeError, TypeError) as error:
        raise UserError(f"logger '{chosen}' cannot be made ({error}); give csv, tensorboard or a class") from error
