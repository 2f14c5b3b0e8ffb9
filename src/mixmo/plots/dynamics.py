"""How runs learned: accuracy, calibrated likelihood, diversity and the members' accuracy by epoch."""

import fnmatch
from collections.abc import Sequence
from typing import Any, NamedTuple

from mixmo.evaluation.analysis.dynamics import Columns, columns
from mixmo.plots.style import COLOURS, FAINT, figure, run_names, styled
from mixmo.runs.directory import Run

DASHES = ("-", "--", ":", "-.")  # of members 0, 1, ...


class Panel(NamedTuple):
    title: str
    column: str  # one line per run; with a `*`, one line per member
    factor: float = 1.0


PANELS = (
    Panel("Top1 of the ensemble (%)", "test.ensemble.top1", 100),
    Panel("Top1 of each member (%)", "test.members.*.top1", 100),
    Panel("NLLc of the ensemble", "test.ensemble.nllc"),
    Panel("ratio-error between members", "test.diversity.ratio_error"),
)


def lines(panel: Panel, table: Columns) -> list[list[float]]:
    """Return the values by epoch that a panel draws of one run: one line, one per member, or none."""
    return [[panel.factor * value for value in table[name]] for name in fnmatch.filter(table, panel.column)]


def draw(runs: Sequence[Run]) -> Any:
    """Draw four panels: one colour per run, one line style per member."""
    tables = [columns(run) for run in runs]
    names = run_names([run.path for run in runs])
    with styled():
        drawn = figure(6.8, 4.4)
        grid = drawn.subplots(2, 2, sharex=True).flatten()
        for axes, panel in zip(grid, PANELS, strict=True):
            axes.set_title(panel.title, loc="left")
            for i, (name, table) in enumerate(zip(names, tables, strict=True)):
                for m, values in enumerate(lines(panel, table)):
                    style = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[m % len(DASHES)]}
                    marker = "o" if len(values) == 1 else ""
                    label = name if m == 0 else "_"
                    axes.plot(table["epoch"], values, marker=marker, markersize=3, label=label, **style)
            if not axes.lines:
                axes.text(0.5, 0.5, "single networks: no pairs", ha="center", color=FAINT, transform=axes.transAxes)
                axes.set_yticks([])
        grid[1].text(1, 0.03, "member 0 solid, 1 dashed, ...", ha="right", color=FAINT, transform=grid[1].transAxes)
        for axes in grid[2:]:
            axes.set_xlabel("epoch")
            axes.xaxis.get_major_locator().set_params(integer=True)
        handles, labels = grid[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
    return drawn
