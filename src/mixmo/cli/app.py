"""The command `mixmo`. Each subcommand is a file here with one function `main(arguments)`, imported when it runs."""

import importlib
import os
import sys
from typing import NoReturn

from mixmo.cli.plugins import load_plugins, split_plugins
from mixmo.cli.streams import flush_or_discard, prepared_streams
from mixmo.utils.errors import UserError, unknown
from mixmo.utils.signals import Stopped, stoppable, terminated_as_interrupted
from mixmo.utils.text import printable, printable_lines

COMMANDS = {
    "demo": "train on the embedded digits and show two subnetworks in one network",
    "train": "train a recipe into a run directory",
    "rerun": "train the recipe of a run again and compare",
    "eval": "score a run or a saved network, or several as one ensemble",
    "compare": "scores and recipes of runs side by side, mean and std over seeds",
    "report": "one HTML page about a run, or about several side by side",
    "runs": "all runs below a folder: state, progress and scores",
    "watch": "a live page of all runs below a folder",
    "predict": "classes, probabilities and uncertainty of image files",
    "serve": "predictions over HTTP, and a page to try a network",
    "data": "download, check and corrupt data sets",
    "export": "write a network as one ONNX or PyTorch file",
    "list": "methods, recipes, models, masks, data sets, metrics, shipped networks",
    "show": "a recipe in full, with its scores, cost and training time",
    "bench": "training and prediction speed of a recipe on this machine",
    "analyse": "filters, members, diversity and training dynamics of runs",
    "reproduce": "tables and figures of the paper, ours beside the paper's",
    "plot": "figures: masks, weights, pairs, dynamics, filters",
}
USAGE = """usage: mixmo COMMAND ...

An ensemble for the price of one network.

{commands}

`mixmo help COMMAND` shows its options.
Example: mixmo train cifar100/cut-mixmo --width 4 --out runs/cut

options:
  --plugin FILE.py   with any command, repeatable: import a file or module that
                     registers user-defined masks, pixel augmentations,
                     networks, data sets or metrics, or makes the backbone of
                     a run; as are those in the environment variable
                     MIXMO_PLUGINS, and installed packages with an entry point
                     `mixmo.plugins`
  --version          print the version
"""
TRAINING = ("train", "rerun", "bench", "show", "demo", "reproduce")


def command() -> NoReturn:
    """Run the process `mixmo`."""
    status = main()
    if (torch := sys.modules.get("torch")) and torch.distributed.is_initialized():
        from mixmo.engine.distributed import end

        end(status)
    sys.exit(status)


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 2 after an error of the user, or 130 if interrupted."""
    process = int(os.environ.get("RANK", "0"))  # one of several
    with prepared_streams():
        try:
            with terminated_as_interrupted():
                run(sys.argv[1:] if arguments is None else arguments)
            return 0
        except SystemExit as done:  # argparse, after --help
            return int(done.code or 0)
        except (UserError, UserWarning) as error:  # a warning under `python -W error`
            print(f"mixmo{f' (process {process})' if process else ''}: {printable_lines(str(error))}", file=sys.stderr)
            return 2
        except BrokenPipeError:  # the reader of the output has read enough, as in `mixmo list | head`
            return 0
        except OSError as error:
            where = error.filename or "standard output or a file"
            print(f"mixmo: {printable(str(where))}: {error.strerror or error}; check it and try again", file=sys.stderr)
            return 2
        except (KeyboardInterrupt, Stopped) as stop:
            if not process:
                print(f"mixmo: {printable(str(stop)) or 'interrupted'}", file=sys.stderr)
            return 130
        finally:
            flush_or_discard(sys.stdout)


def run(arguments: list[str]) -> None:
    """Run a command; errors are exceptions."""
    files, words = split_plugins(arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        commands = "\n".join(f"  {name:10} {summary}" for name, summary in COMMANDS.items())
        print(USAGE.format(commands=commands), end="", flush=True)
    elif words[0] == "--version":
        from mixmo._version import __version__

        print(__version__, flush=True)
    elif words[0] not in COMMANDS:
        raise unknown("command", words[0], COMMANDS)
    else:
        with stoppable():  # PyTorch takes seconds to import
            from mixmo.utils.memory import advised
            from mixmo.utils.progress import shown

            load_plugins(files)
            module = importlib.import_module(f"mixmo.cli.{words[0]}")
        smaller = "take a smaller batch size or width, or fewer members"
        elsewhere = "end other programs, or give --device cpu if it was the memory of a GPU"
        with shown(), advised(smaller if words[0] in TRAINING else elsewhere):
            module.main(words[1:])
        sys.stdout.flush()
