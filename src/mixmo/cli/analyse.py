"""mixmo analyse RUN... [--json | --csv]"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from rich.table import Table

from mixmo.cli.arguments import parse, parser
from mixmo.cli.console import grid, lettered, number, print_json, print_line, print_table
from mixmo.engine import Runtime
from mixmo.evaluation.analysis import Analysis, analyse, columns, to_csv
from mixmo.evaluation.analysis.summary import LAST, THRESHOLDS, RunAnalysis
from mixmo.metrics import DIVERSITY
from mixmo.recipes.fields import PROBABILITY, at_least
from mixmo.runs.directory import Run
from mixmo.utils.errors import unknown

MEANS = {  # columns of the training dynamics
    "train loss": "train.loss",
    "Top1 %": "test.ensemble.top1",
    "NLL": "test.ensemble.nll",
    "NLLc": "test.ensemble.nllc",
    "ECE": "test.ensemble.ece",
    "ratio-error": "test.diversity.ratio_error",
}
Runs = dict[str, RunAnalysis]  # by letter


def main(arguments: list[str]) -> None:
    into = parser("analyse", "Filters, members, diversity and training dynamics of runs.")
    into.add_argument("runs", nargs="+", type=Path, help="run directories, tested on the same data")
    into.add_argument("--which", type=Literal["last", "best"], default="last", help="epoch of the weights and logits")
    into.add_argument(
        "--thresholds",
        nargs="+",
        type=Annotated[float, PROBABILITY],
        default=list(THRESHOLDS),
        help="shares of a layer's largest l1 norm from which on a filter is active",
    )
    into.add_argument("--last", type=Annotated[int, at_least(1)], default=LAST, help="epochs to average over")
    into.add_argument(
        "--measure", default="ratio_error", help="diversity measure shown for each pair (`mixmo list metrics`)"
    )
    into.add_argument("--json", action="store_true", help="print everything as JSON")
    into.add_argument("--csv", action="store_true", help="print the training dynamics as CSV, one line per epoch")
    into.add_argument("--device", default="auto", help="where to test a run that has not ended")
    into.add_argument("--data", type=Path, help="folder of the data sets, for such a run")
    parsed = parse(into, arguments)
    if parsed.measure not in DIVERSITY:
        raise unknown("diversity measure", parsed.measure, DIVERSITY)
    runs = Run.open_each(parsed.runs)
    if parsed.csv:
        print(to_csv({str(run.path): columns(run) for run in runs}), end="")
        return
    device = Runtime(device=parsed.device).resolve()
    found = analyse(runs, parsed.which, parsed.thresholds, parsed.last, device, parsed.data)
    if parsed.json:
        print_json(found.to_dict())
    else:
        print_analysis(found, parsed.measure)


def print_analysis(found: Analysis, measure: str) -> None:
    """Print the analysis as tables, with letters for the runs."""
    runs = lettered(found.runs)
    for letter, run in runs.items():
        print_line(f"{letter}  {run.run} ({found.which} epoch)")
    for make in (members_table, encoders_table, filters_table, dynamics_table):
        print()
        print_table(make(runs), wrap=make is encoders_table)  # it lists every channel
    if len(found.predictors) > 1:
        print()
        print_table(diversity_table(runs, found.diversity[measure], measure))


def members_table(runs: Runs) -> Table:
    rows = [
        (letter, f"{100 * run.top1:.2f}", "  ".join(f"{100 * top1:.2f}" for top1 in run.members_top1))
        for letter, run in runs.items()
    ]
    return grid("run", "ensemble Top1 %", "each member", rows=rows, title="accuracy on the test set")


def encoders_table(runs: Runs) -> Table:
    table = grid("run", "encoder", "separation", title="l1 norms of the encoders' filters")
    table.add_column("channel by channel")
    for letter, run in runs.items():
        for m, norms in enumerate(run.encoders):
            first = ("", "") if m else (letter, number(run.separation, 3))
            table.add_row(first[0], str(m), first[1], " ".join(f"{norm:.1f}" for norm in norms))
    return table


def filters_table(runs: Runs) -> Table:
    thresholds = [f"t = {active.threshold:g}" for active in runs["A"].active]
    table = grid("run", "", *thresholds, words=2, title="active filters of the core (%)")
    for letter, run in runs.items():
        table.add_row(letter, "mean over layers", *[f"{100 * active.by_layer:.1f}" for active in run.active])
        table.add_row("", "of all filters", *[f"{100 * active.by_filter:.1f}" for active in run.active])
    return table


def dynamics_table(runs: Runs) -> Table:
    table = grid("run", "epochs", *MEANS, title="means over the last epochs")
    for letter, run in runs.items():
        top1 = run.means.get("test.ensemble.top1")
        values = run.means | {"test.ensemble.top1": top1 and 100 * top1}
        cells = [number(values.get(name), 2 if name.endswith("top1") else 4) for name in MEANS.values()]
        table.add_row(letter, str(run.epochs), *cells)
    return table


def diversity_table(runs: Runs, matrix: Sequence[Sequence[float]], measure: str) -> Table:
    names = [f"{letter}{member}" for letter, run in runs.items() for member in range(len(run.members_top1))]
    table = grid("", *names, title=measure)
    for i, row in enumerate(matrix):
        table.add_row(names[i], *["." if i == j else number(value, 3) for j, value in enumerate(row)])
    return table
