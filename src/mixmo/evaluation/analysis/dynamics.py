"""Training dynamics of a run: its metrics.jsonl as columns such as `lr`, `test.members.0.nllc`, one value per epoch."""

import csv
import io
import math
from collections.abc import Mapping, Sequence

from mixmo.runs.directory import Run
from mixmo.runs.metrics_log import flat
from mixmo.utils.errors import UserError, check_whole

Columns = Mapping[str, Sequence[float]]


def columns(run: Run) -> dict[str, list[float]]:
    """Return every number of every scored epoch, by column; NaN where an epoch lacks it."""
    rows = [dict(flat(line, ".")) for line in run.read_metrics()]
    if not rows:
        raise UserError(f"{run.path} has no scored epoch yet; let the training finish one, with --resume if it stopped")
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, math.nan) for row in rows] for name in names}


def scored(table: Columns, last: int) -> int:
    """Count how many of the last epochs are in the table: not all, with --score-every."""
    return sum(epoch > table["epoch"][-1] - last for epoch in table["epoch"])


def average(table: Columns, last: int = 10) -> dict[str, float]:
    """Average each column over the last epochs (the paper reports the last 10), without NaN."""
    check_whole("last", last)
    means = {}
    for name, values in table.items():
        known = [value for value in values[-scored(table, last) :] if not math.isnan(value)]
        if known:
            means[name] = math.fsum(known) / len(known)
    return means


def to_csv(tables: Mapping[str, Columns]) -> str:
    """Write the columns of some runs as one CSV table, one line per epoch and run; empty where a run lacks a value."""
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *names])
    for run, table in tables.items():
        for row in range(len(table["epoch"])):
            values = [table[name][row] if name in table else math.nan for name in names]
            writer.writerow([run, *["" if math.isnan(value) else value for value in values]])
    return text.getvalue()
