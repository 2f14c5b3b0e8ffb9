"""A table of `mixmo reproduce` as a picture: filled marks are ours, hollow ones the paper's."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from mixmo.plots.style import COLOURS, FAINT, figure, matplotlib, styled
from mixmo.reproduce import scores
from mixmo.reproduce.plan import published
from mixmo.reproduce.report import Report, heading
from mixmo.reproduce.text import title

MARKS = ("o", "s", "^", "D", "v", "P")
ACROSS = 5  # panels beside each other, at most
AXES = {"x": "b or N", "width": "width w", "members": "members M", "parameters": "parameters (M)"}


class Line(NamedTuple):
    name: str
    x: list[float]
    cells: list[tuple[int, int]]  # row and column of each point
    colour: int
    mark: int


def draw(report: Report) -> Any:
    return draw_lines(report) if report.plan.table.picture.kind == "lines" else draw_dots(report)


def draw_dots(report: Report) -> Any:
    """Draw one panel per column, with the rows from the top."""
    table = report.plan.table
    count, rows = len(table.columns), len(table.rows)
    down = -(-count // ACROSS)
    across = -(-count // down)
    with styled():
        drawn = figure(1.9 * across + 2.2, (0.19 * rows + 0.7) * down + 0.6)
        grid = drawn.subplots(down, across, squeeze=False, sharey=True).flatten()
        for axes in grid[count:]:
            axes.set_visible(False)
        for j, (axes, column) in enumerate(zip(grid, table.columns, strict=False)):
            axes.set_title(heading(column), loc="left")
            axes.grid(True, axis="x")
            axes.set_yticks(range(rows), [row.label for row in table.rows])
            axes.set_ylim(rows - 0.5, -0.5)
            for i in range(rows):
                cell = report.cells[i, j]
                if cell.paper is not None:
                    axes.plot(cell.paper.value, i, "o", color=FAINT, fillstyle="none", markersize=5)
                if cell.ours is not None:
                    axes.errorbar(cell.ours, i, xerr=cell.spread, fmt="o", color=COLOURS[0], markersize=4)
        caption(drawn, report)
    return drawn


def draw_lines(report: Report) -> Any:
    """Draw one panel per score: lines over the varied quantity; reference rows are horizontal lines."""
    table = report.plan.table
    panels: dict[str, list[int]] = {}
    for j, column in enumerate(table.columns):
        panels.setdefault(heading(column._replace(group="")), []).append(j)
    across = min(2, len(panels))
    down = -(-len(panels) // across)
    handles: dict[str, Any] = {}
    ticker = matplotlib().ticker
    with styled():
        drawn = figure(max(5.6, 3.6 * across + 0.2), 2.6 * down + 0.9)
        grid = drawn.subplots(down, across, squeeze=False).flatten()
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        for axes, (name, columns) in zip(grid, panels.items(), strict=False):
            axes.set_title(name, loc="left")
            axes.set_xlabel(AXES.get(str(table.picture.x), str(table.picture.x)))
            if table.picture.x == "parameters":
                axes.set_xscale("log")
                axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
                axes.xaxis.set_major_formatter(ticker.ScalarFormatter())
                axes.xaxis.set_minor_locator(ticker.NullLocator())
            found = lines(report, columns)
            for line in found:
                shown = _draw_line(axes, report, line)
                if line.name:
                    handles.setdefault(line.name, shown)
            if all(x.is_integer() for line in found for x in line.x):  # no half a member
                axes.xaxis.get_major_locator().set_params(integer=True)
            handles |= _draw_levels(axes, report, columns[0])
        if handles:
            drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(3, len(handles)))
        caption(drawn, report)
    return drawn


def _draw_levels(axes: Any, report: Report, column: int) -> dict[str, Any]:
    """Draw the reference rows as horizontal lines: ours dashed, the paper's dotted."""
    handles, levels = {}, [i for i, row in enumerate(report.plan.table.rows) if row.level]
    for colour, i in enumerate(levels, 1):
        cell, name = report.cells[i, column], report.plan.table.rows[i].label
        style = {"color": COLOURS[colour % len(COLOURS)]}
        if cell.paper is not None:
            handles[name] = axes.axhline(cell.paper.value, linestyle=":", **style)
        if cell.ours is not None:
            handles[name] = axes.axhline(cell.ours, linestyle="--", **style)
    return handles


def lines(report: Report, columns: Sequence[int]) -> list[Line]:
    """Return the lines of these columns: one per column and per value of the quantity that the table groups by."""
    table, found = report.plan.table, list[Line]()
    kinds = list(dict.fromkeys(_kind(report, i) for i in range(len(table.rows))))
    # What follows a plus sign is a variant: of the same colour, with another mark. All panels share one legend.
    groups = [column.group.partition(" + ")[::2] for column in table.columns]
    colours = list(dict.fromkeys(base for base, _ in groups))
    for m, j in enumerate(columns):
        for kind in kinds:
            rows = [i for i, row in enumerate(table.rows) if _kind(report, i) == kind and not row.level]
            known = [(x, (i, j)) for i in rows if (x := place(report, i, j)) is not None]
            name = ", ".join(word for word in (table.columns[j].group, kind) if word)
            base, variant = groups[j]
            colour, mark = (kinds.index(kind), m) if len(kinds) > 1 else (colours.index(base), int(bool(variant)))
            found.append(Line(name, [x for x, _ in known], [cell for _, cell in known], colour, mark))
    return found


def _kind(report: Report, row: int) -> str:
    of, described = report.plan.table.picture.line, report.plan.table.rows[row]
    if of is None:
        return ""
    if of == "line" and described.line:
        return described.line
    return f"{'N' if of == 'networks' else of} = {described.changes[of]}"


def place(report: Report, row: int, column: int) -> float | None:
    """Return a cell's position on the horizontal axis; parameters are those of the published networks."""
    table = report.plan.table
    if table.picture.x == "parameters":
        networks = published(table.name).cells[row, column].groups[0]
        return scores.of_recipe("parameters", networks[0], len(networks)) / 1e6
    x = {**table.rows[row].changes, "x": table.rows[row].x}.get(str(table.picture.x))
    return None if x is None else float(x)


def _draw_line(axes: Any, report: Report, line: Line) -> Any:
    colour, mark = COLOURS[line.colour % len(COLOURS)], MARKS[line.mark % len(MARKS)]
    cells = [report.cells[place] for place in line.cells]
    points = list(zip(line.x, cells, strict=True))
    theirs = [(x, cell.paper.value) for x, cell in points if cell.paper is not None]
    ours = [(x, cell.ours, cell.spread or 0.0) for x, cell in points if cell.ours is not None]
    style = {"color": colour, "marker": mark, "markersize": 4}
    axes.plot(*(zip(*theirs, strict=True) if theirs else ([], [])), linestyle=":", fillstyle="none", **style)
    x, y, error = zip(*ours, strict=True) if ours else ([], [], [])
    return axes.errorbar(x, y, yerr=error if any(error) else None, **style)


def caption(drawn: Any, report: Report, more: str = "filled: ours; hollow or dotted: the paper's") -> None:
    drawn.suptitle("\n".join((title(report.plan), more)).strip(), fontsize=8, x=0.01, ha="left", wrap=True)
