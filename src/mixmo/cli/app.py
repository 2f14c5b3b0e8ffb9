"""The command `mixmo`. Each subcommand is a file here with one function `main(arguments)`."""

import importlib
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

from mixmo.utils.errors import UserError, unknown
from mixmo.utils.signals import terminated_as_interrupted

COMMANDS = {
    "demo": "train on the embedded digits and show two networks inside one",
    "train": "train a recipe into a run directory",
    "eval": "score a run or a saved network, or several as one ensemble",
    "predict": "answers and their uncertainty for image files",
    "data": "get, check and corrupt data sets",
    "export": "write a network as one ONNX or PyTorch file",
    "list": "what there is: recipes, models, masks, datasets, metrics, shipped networks",
    "show": "a recipe in full, with its cost",
    "bench": "how fast a recipe trains and predicts here",
    "analyse": "filters, members, diversity and training dynamics of runs",
    "reproduce": "tables and figures of the paper: runs, ours beside the paper's",
    "plot": "pictures: masks, weights, pairs, dynamics, filters",
}


def usage() -> str:
    lines = [f"  {name:10} {summary}" for name, summary in COMMANDS.items()]
    return (
        "usage: mixmo COMMAND ...\n\nAn ensemble for the price of one network.\n\n"
        + "\n".join(lines)
        + ("\n\n`mixmo COMMAND --help` tells more. Example: mixmo train cifar100/cut-mixmo --width 4 --out runs/cut\n")
    )


def rank() -> str:
    """Which of several processes speaks."""
    number = os.environ.get("RANK", "0")
    return "" if number == "0" else f" (process {number})"


def command() -> NoReturn:
    """The process `mixmo`."""
    status = main()
    if (torch := sys.modules.get("torch")) and torch.distributed.is_initialized():
        from mixmo.engine.distributed import end

        end(status)
    sys.exit(status)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; bad input gives one sentence on standard error and exit status 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    prepare_streams()
    usual, warnings.formatwarning = warnings.formatwarning, spoken
    heard, sys.stderr = sys.stderr, Heard(sys.stderr)
    try:
        with terminated_as_interrupted():
            return run(arguments)
    except BrokenPipeError:  # the reader of our output has seen enough
        drop(sys.stdout)
        return 0
    except OSError as error:
        where = error.filename or "standard output or a file"
        print(f"mixmo: {where}: {error.strerror or error}; check it and try again", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            drop(sys.stdout)
        return 2
    except KeyboardInterrupt:
        if not rank():
            print("mixmo: interrupted", file=sys.stderr)
        return 130
    finally:
        warnings.formatwarning, sys.stderr = usual, heard
        try:
            sys.stderr.flush()
        except OSError:
            drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """What is still to be written would fail once more when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Heard:
    """Standard error, if somebody listens: a terminal that is closed or a log on a full disk ends no hours of work."""

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


def spoken(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """A warning of ours as a sentence, without the place in the code; others, with it."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"mixmo: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def prepare_streams() -> None:
    """Closed streams swallow what is written; a character that a terminal does not have is written by its number."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage(), end="", flush=True)
        return 0
    if arguments[0] == "--version":
        from mixmo._version import __version__

        print(__version__, flush=True)
        return 0
    from mixmo.utils.progress import shown
    from mixmo.utils.signals import Stopped, stoppable

    try:
        if arguments[0] not in COMMANDS:
            raise unknown("command", arguments[0], COMMANDS)
        with stoppable():
            from mixmo.utils.memory import told

            module = importlib.import_module(f"mixmo.cli.{arguments[0]}")
        with shown(), told(lower(arguments[0])):
            module.main(arguments[1:])
        sys.stdout.flush()
    except (UserError, UserWarning) as error:  # a warning under `python -W error`
        print(f"mixmo{rank()}: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        if not rank():
            print(f"mixmo: {stopped}", file=sys.stderr)
        return 130
    except SystemExit as done:  # --help
        return int(done.code or 0)
    return 0


def lower(command: str) -> str:
    """What takes less memory."""
    if command in ("train", "bench", "show", "demo", "reproduce"):
        return "take a smaller batch_size or width, or fewer members"
    return "end other programs, give --device cpu if it was a GPU's, or take a machine with more"
