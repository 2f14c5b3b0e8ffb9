"""mixmo analyse RUN... [--json | --csv]"""

import json
from pathlib import Path
from typing import Literal

from rich.table import Table

from mixmo.cli.arguments import parse, parser
from mixmo.cli.console import grid, number
from mixmo.cli.tables import letters, print_line, print_table
from mixmo.engine import Runtime
from mixmo.evaluation.analysis import Analysis, analyse, columns, to_csv
from mixmo.evaluation.analysis.summary import LAST, THRESHOLDS
from mixmo.metrics import DIVERSITY
from mixmo.runs.directory import Run
from mixmo.utils.errors import UserError, unknown


def main(arguments: list[str]) -> None:
    into = parser("analyse", "Filters, members, diversity and training dynamics of runs.")
    into.add_argument("runs", nargs="+", type=Path, help="run directories, tested on the same data")
    into.add_argument("--which", type=Literal["last", "best"], default="last", help="epoch of the weights and logits")
    into.add_argument(
        "--thresholds",
        nargs="+",
        type=float,
        default=list(THRESHOLDS),
        help="shares of a layer's largest l1 norm from which on a filter is active",
    )
    into.add_argument("--last", type=int, default=LAST, help="epochs to average over")
    into.add_argument(
        "--measure", default="ratio_error", help="diversity measure shown for each pair (`mixmo list metrics`)"
    )
    into.add_argument("--json", action="store_true", help="print everything as JSON")
    into.add_argument("--csv", action="store_true", help="print the training dynamics as CSV, one line per epoch")
    into.add_argument("--device", default="auto", help="where to test a run that has not ended")
    into.add_argument("--data", type=Path | None, default=None, help="folder of the data sets, for such a run")
    parsed = parse(into, arguments)
    if parsed.json and parsed.csv:
        raise UserError("--json and --csv exclude each other; give one of them")
    if parsed.measure not in DIVERSITY:
        raise unknown("diversity measure", parsed.measure, DIVERSITY)
    runs = Run.open_each(parsed.runs)
    if parsed.csv:
        print(to_csv({str(run.path): columns(run) for run in runs}), end="")
        return
    device = Runtime(device=parsed.device).resolve()
    found = analyse(runs, parsed.which, parsed.thresholds, parsed.last, device, parsed.data)
    if parsed.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        show(found, parsed.measure)


def show(found: Analysis, measure: str) -> None:
    """Print the analysis as tables, with letters for the runs."""
    short = letters(len(found.runs))
    for letter, run in zip(short, found.runs, strict=True):
        print_line(f"{letter}  {run.run} ({found.which} epoch)")
    tables = [make(found, short) for make in (members_table, encoders_table, filters_table, dynamics_table)]
    if len(found.predictors) > 1:
        tables.append(diversity_table(found, short, measure))
    for table in tables:
        print()
        print_table(table, wrap=table is tables[1])  # it lists every channel


def members_table(found: Analysis, letters: list[str]) -> Table:
    table = grid("run", "ensemble Top1 %", "each member", title="accuracy on the test set")
    for letter, run in zip(letters, found.runs, strict=True):
        members = "  ".join(f"{100 * value:.2f}" for value in run.members_top1)
        table.add_row(letter, f"{100 * run.top1:.2f}", members)
    return table


def encoders_table(found: Analysis, letters: list[str]) -> Table:
    table = grid("run", "encoder", "separation", title="l1 norms of the encoders' filters")
    table.add_column("channel by channel")
    for letter, run in zip(letters, found.runs, strict=True):
        for m, norms in enumerate(run.encoders):
            separate = "" if m else "-" if run.separation is None else f"{run.separation:.3f}"
            table.add_row("" if m else letter, str(m), separate, " ".join(f"{norm:.1f}" for norm in norms))
    return table


def filters_table(found: Analysis, letters: list[str]) -> Table:
    thresholds = [active.threshold for active in found.runs[0].active]
    columns = [f"t = {value:g}" for value in thresholds]
    table = grid("run", "", *columns, words=2, title="active filters of the core (%)")
    for letter, run in zip(letters, found.runs, strict=True):
        by_layer = [f"{100 * active.by_layer:.1f}" for active in run.active]
        by_filter = [f"{100 * active.by_filter:.1f}" for active in run.active]
        table.add_row(letter, "mean over layers", *by_layer)
        table.add_row("", "of all filters", *by_filter)
    return table


def dynamics_table(found: Analysis, letters: list[str]) -> Table:
    names = {
        "train loss": "train.loss",
        "Top1 %": "test.ensemble.top1",
        "NLL": "test.ensemble.nll",
        "NLLc": "test.ensemble.nllc",
        "ECE": "test.ensemble.ece",
        "ratio-error": "test.diversity.ratio_error",
    }
    table = grid("run", "epochs", *names, title="means over the last epochs")
    for letter, run in zip(letters, found.runs, strict=True):
        cells = []
        for name in names.values():
            value = run.means.get(name)
            cells.append("-" if value is None else f"{100 * value:.2f}" if name.endswith("top1") else f"{value:.4f}")
        table.add_row(letter, str(run.epochs), *cells)
    return table


def diversity_table(found: Analysis, letters: list[str], measure: str) -> Table:
    names = [
        f"{letter}{member}"
        for letter, run in zip(letters, found.runs, strict=True)
        for member in range(len(run.members_top1))
    ]
    table = grid("", *names, title=measure)
    for i, row in enumerate(found.diversity[measure]):
        table.add_row(names[i], *["." if i == j else number(value, 3) for j, value in enumerate(row)])
    return table
