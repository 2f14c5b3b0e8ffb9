"""mixmo runs [DIR] [--sort COLUMN] [--json]"""

import time
from pathlib import Path
from typing import Any, Literal

from mixmo.cli.arguments import parse, parser
from mixmo.cli.console import grid, number, print_json, print_line, print_table
from mixmo.reports.listing import Listing, RunRow
from mixmo.utils.errors import UserError
from mixmo.utils.text import duration, printable

COLUMNS = ("run", "state", "epoch", "top1", "nll", "nllc", "ece", "left", "updated")
DOWN = ("epoch", "top1", "updated")  # sorted from the largest


def main(arguments: list[str]) -> None:
    into = parser("runs", "List the runs below a folder: state, progress, scores of the last scored epoch, time left.")
    into.add_argument("folder", nargs="?", type=Path, help="folder to search (default: runs, else the current folder)")
    into.add_argument("--sort", type=Literal[COLUMNS], default="run", help="column to sort by, best or newest first")
    into.add_argument("--json", action="store_true", help="print JSON, with curves")
    parsed = parse(into, arguments)
    folder = runs_folder(parsed.folder)
    rows = Listing(folder).read()
    rows.sort(key=lambda row: _key(row, parsed.sort))
    if parsed.json:
        print_json([row.to_dict() for row in rows])
    elif not rows:
        print_line(f"no runs below {printable(str(folder))}; `mixmo train RECIPE --out DIR` makes one")
    else:
        print_runs(rows)


def runs_folder(given: Path | None) -> Path:
    """Return the folder of a command's runs: the given one, else `runs` if it exists, else the current folder."""
    folder = given or (Path("runs") if Path("runs").is_dir() else Path())
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give one that holds run directories")
    return folder


def print_runs(rows: list[RunRow]) -> None:
    table = grid("run", "recipe", "state", "epoch", "Top1 %", "NLL", "NLLc", "ECE", "left", "updated", words=3)
    for row in rows:
        table.add_row(
            row.run,
            printable(row.method),
            row.state,
            f"{row.epoch}/{row.epochs or '?'}",
            number(row.top1 and 100 * row.top1, 2),
            *(number(value) for value in (row.nll, row.nllc, row.ece)),
            "" if row.left is None else duration(row.left),
            _ago(row.updated),
        )
    print_table(table)
    for row in rows:
        if row.error:
            print_line(f"{row.run}: {row.error}")


def _key(row: RunRow, column: str) -> tuple[bool, Any]:
    """What to sort by; runs without a value come last."""
    value = getattr(row, column)
    return value is None, -value if column in DOWN and value is not None else value


def _ago(when: float) -> str:
    """Return how long ago something was, roughly."""
    seconds = max(0.0, time.time() - when)
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "now"
