"""mixmo watch [DIR] [--port N]"""

from pathlib import Path
from typing import Annotated

from mixmo.cli.arguments import parse, parser
from mixmo.cli.console import print_line
from mixmo.cli.runs import runs_folder
from mixmo.recipes.fields import PORT, Range
from mixmo.reports.watch import serve
from mixmo.utils.text import printable


def main(arguments: list[str]) -> None:
    into = parser(
        "watch",
        "Serve a live page of all runs below a folder on this machine only: state, scores, curves, time left. It reads "
        "and never writes; Ctrl-C ends it.",
    )
    into.add_argument("folder", nargs="?", type=Path, help="folder to watch (default: runs, or else this one)")
    into.add_argument(
        "--port", type=Annotated[int, PORT], default=8420, help="port of this machine; 0 for any that is free"
    )
    into.add_argument(
        "--every",
        type=Annotated[float, Range(0, 86_400, "(]")],
        default=2.0,
        help="seconds between two looks at the folder",
    )
    parsed = parse(into, arguments)
    folder = runs_folder(parsed.folder)
    with serve(folder, parsed.port, parsed.every) as watching:
        print_line(f"watching {printable(str(folder))} at {watching.address}  (Ctrl-C ends it)")
        watching.wait()
