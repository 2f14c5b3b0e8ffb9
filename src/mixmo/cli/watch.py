"""mixmo watch [DIR] [--port N]"""

from pathlib import Path
from typing import Annotated

from mixmo.cli.arguments import parse, parser
from mixmo.cli.console import print_line
from mixmo.cli.runs import runs_folder
from mixmo.recipes.fields import PORT
from mixmo.reports.watch import serve
from mixmo.utils.text import printable


def main(arguments: list[str]) -> None:
    into = parser(
        "watch",
        "Serve a live page of all runs below a folder, for this machine only: state, scores, curves, time left. It "
        "writes no files; Ctrl-C stops it.",
    )
    into.add_argument("folder", nargs="?", type=Path, help="folder to watch (default: runs, else the current folder)")
    into.add_argument("--port", type=Annotated[int, PORT], default=8420, help="port to listen on; 0: any free port")
    parsed = parse(into, arguments)
    folder = runs_folder(parsed.folder)
    with serve(folder, parsed.port) as watching:
        print_line(f"watching {printable(str(folder))} at {watching.address}  (Ctrl-C stops it)")
        watching.wait()
