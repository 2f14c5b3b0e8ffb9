"""A filled table as Markdown and as CSV. Its title names the scale and the changes to the protocol."""

import csv
import io
import math
from collections.abc import Sequence

from mixmo.reproduce.plan import Plan, trained
from mixmo.reproduce.report import Absent, Filled, Report, heading, unit_of
from mixmo.reproduce.scales import SCALES

HEADINGS = (
    *("table", "scale", "changed", "row", "column", "score", "epoch", "unit"),
    *("ours", "spread", "seeds", "paper", "paper_spread", "difference"),
)


def title(plan: Plan) -> str:
    words = ["nothing is trained"]
    if trained(plan.table):
        seeds = f"{plan.seeds} seed{'s' if plan.seeds > 1 else ''}"
        words = [f"scale {plan.scale}", seeds, *[f"{name} = {value}" for name, value in plan.settings.items()]]
    return f"{plan.table.title} (paper: {plan.table.source}); {', '.join(words)}"


def slug(plan: Plan) -> str:
    """The folder of a table: its scale, and what was changed in it."""
    if not trained(plan.table):
        return "untrained"
    changed = [f"{name}={value}" for name, value in plan.settings.items()]
    return "+".join([plan.scale, *changed]).replace("/", "-").replace(" ", "")


def markdown(report: Report, absent: Absent, command: str) -> str:
    """Return ours, the paper's and the difference as one table, and below it what is missing."""
    plan, table = report.plan, report.plan.table
    timed = any(row.time for row in table.rows)
    lines = [f"# {title(plan)}", ""]
    if trained(plan.table):
        changed = "".join(f"; here {name} = {value}" for name, value in plan.settings.items())
        lines += [f"Scale {plan.scale}: {SCALES[plan.scale].summary}{changed}.", ""]
    other = trained(table) and (plan.scale != "paper" or plan.settings)
    lines += [f"In the paper: {table.about}" if other else table.about, ""]
    lines += ["A cell is ours ± spread over seeds (the paper's, ours minus the paper's); - stands for none.", ""]
    names = ["", *(["time (paper)"] if timed else []), *[heading(column) for column in table.columns]]
    lines += [_line(names), _line(["---"] * len(names))]
    for i, row in enumerate(table.rows):
        cells = [show(report.cells[i, j], unit_of(column).digits) for j, column in enumerate(table.columns)]
        lines.append(_line([row.label, *([row.time or "-"] if timed else []), *cells]))
    lines.append("")
    if report.devices:
        lines.append(f"Runs: {', '.join(f'{count} on {name}' for name, count in report.devices.items())}.")
    if absent.missing:
        kept = f" ({absent.stripped} of them kept without the logits or weights it needs)" if absent.stripped else ""
        lines.append(f"{absent.missing} of {absent.needed} runs are missing{kept}; `{command}` trains them.")
    if plan.beyond:
        lines.append(f"{plan.beyond} cells are beyond this scale.")
    lines += report.notes
    return "\n".join(lines).rstrip() + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def show(cell: Filled, digits: int) -> str:
    """A cell of the Markdown table.

    >>> from mixmo.reproduce.paper import Figure
    >>> show(Filled(85.1, 0.12, 3, Figure(85.4)), 2), show(Filled(None, None, 0, Figure(85.4)), 2)
    ('85.10 ± 0.12 (85.40, -0.30)', '- (85.40)')
    >>> show(Filled(None, None, 0, Figure(51.93)), 1)
    '- (51.93)'
    """
    spread = "" if cell.spread is None else f" ± {cell.spread:.{digits}f}"
    ours = "-" if cell.ours is None else f"{cell.ours:.{digits}f}{spread}"
    if cell.paper is None:
        return ours
    paper = f"{cell.paper.value:.{digits}f}"
    if not math.isclose(float(paper), cell.paper.value, rel_tol=1e-9):
        paper = f"{cell.paper.value:.6g}"  # as printed, where that has more digits
    if cell.paper.spread is not None:
        paper += f" ± {cell.paper.spread:.{digits}f}"
    return f"{ours} ({paper}" + (")" if cell.difference is None else f", {cell.difference:+.{digits}f})")


def to_csv(report: Report) -> str:
    """Return one line per cell, with full precision."""
    plan, text = report.plan, io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    changed = " ".join(f"{name}={value}" for name, value in plan.settings.items())
    writer.writerow(HEADINGS)
    for (i, j), cell in report.cells.items():
        row, column = plan.table.rows[i], plan.table.columns[j]
        paper, spread = cell.paper or (None, None)
        numbers = [cell.ours, cell.spread, cell.seeds, paper, spread, cell.difference]
        writer.writerow(
            [plan.table.name, plan.scale, changed, row.label, heading(column), column.score]
            + [row.which or plan.table.which, unit_of(column).name]
            + ["" if number is None or math.isnan(number) else f"{number:.10g}" for number in numbers]
        )
    return text.getvalue()
