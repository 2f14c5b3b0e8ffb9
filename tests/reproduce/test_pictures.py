"""What the pictures of tables draw: points where the table says, ours and the paper's."""

from typing import Any

import pytest

from mixmo.reproduce import paper
from mixmo.reproduce.figures import draw, lines, place
from mixmo.reproduce.plan import expand
from mixmo.reproduce.report import Filled, Report, printed

pytest.importorskip("matplotlib")


def report(name: str, ours: float | None = 1.5) -> Report:
    """A table whose every cell has this number."""
    table = paper.load(name)
    places = [(i, j) for i in range(len(table.rows)) for j in range(len(table.columns))]
    cells = {place: Filled(ours, 0.1, 2, printed(table, *place)) for place in places}
    return Report(expand(table, "hour"), cells, {}, [])


def test_lines_of_methods_over_the_width() -> None:
    made = report("summary")
    found = lines(made, [0, 2, 4])
    assert [line.name for line in found] == ["1-Net", "1-Net + CutMix", "2-Nets"]
    assert [line.x for line in found] == [[2, 3, 4, 5, 7, 10, 14]] * 3
    assert [(line.colour, line.mark) for line in found] == [(0, 0), (0, 1), (1, 0)]  # a variant keeps its colour


def test_a_method_has_one_colour_in_all_panels() -> None:
    made = report("width")
    looks = {line.name: set() for line in lines(made, range(20))}
    for columns in ([0, 2, 4, 6, 8, 10, 12, 14], [16, 17, 18, 19]):  # Top1, and the individual Top1 of four methods
        for line in lines(made, columns):
            looks[line.name].add((line.colour, line.mark))
    assert all(len(look) == 1 for look in looks.values())
    assert looks["Linear-MixMo"] != looks["1-Net"]


def test_whole_numbers_are_not_divided() -> None:
    ticks = draw(report("members")).axes[0].get_xticks()
    assert all(tick == int(tick) for tick in ticks)


def test_panels_are_spread_over_their_rows() -> None:
    drawn = draw(report("tiny-imagenet"))  # six: not five and one
    assert drawn.axes[0].get_subplotspec().get_gridspec().get_geometry() == (2, 3)


def test_lines_over_parameters_join_ensembles_of_one_size() -> None:
    made = report("memory-split")
    found = lines(made, [0, 1])
    assert [line.name for line in found][:2] == ["Vanilla, N = 1", "Vanilla, N = 2"]
    second = found[1]
    assert len(second.x) == 7
    assert second.x[2] == pytest.approx(2 * 5.87, abs=0.01)
    assert place(made, 0, 0) == pytest.approx(1.48, abs=0.01)


def test_rows_outside_the_curve_are_drawn_as_levels() -> None:
    made = report("p")
    (line,) = lines(made, [0])
    assert line.x == [0, 0.2, 0.4, 0.5, 0.6, 0.8, 1]
    drawn = draw(made)
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["MIMO", "DE (2 Nets)"]
    assert "scale hour" in drawn.get_suptitle()
    levels = [line.get_ydata()[0] for line in drawn.axes[3].lines if line.get_linestyle() == ":"]
    assert {0.77, 0.76} <= set(levels)  # the paper's ratio-errors of both


def numbered(name: str) -> Report:
    """A table whose cells have each its own number."""
    made = report(name)
    return made._replace(cells={at: cell._replace(ours=at[0] + 10.0 * at[1]) for at, cell in made.cells.items()})


def ours(axes: Any) -> tuple[list[list[float]], list[list[list[float]]]]:
    """Our marks in a panel, and the ends of their error bars."""
    marks = [mark for drawn in axes.containers for mark in drawn.lines[0].get_xydata().tolist()]
    return marks, [bar.tolist() for drawn in axes.containers for bar in drawn.lines[2][0].get_segments()]


def test_rows_are_drawn_from_the_top_beside_their_names() -> None:
    made = numbered("mixing")
    panels = draw(made).axes
    assert [label.get_text() for label in panels[0].get_yticklabels()] == [row.label for row in made.plan.table.rows]
    for j, axes in enumerate(panels):
        marks, bars = ours(axes)
        assert marks == [[i + 10 * j, i] for i in range(len(made.plan.table.rows))]
        assert bars == [[pytest.approx([x - 0.1, y]), pytest.approx([x + 0.1, y])] for x, y in marks]
        assert axes.yaxis_inverted()


def test_lines_go_through_the_numbers() -> None:
    made = numbered("p")
    for j, axes in enumerate(draw(made).axes):
        (line,), (marks, bars) = lines(made, [j]), ours(axes)
        assert marks == [[x, i + 10 * j] for x, (i, _) in zip(line.x, line.cells, strict=True)]
        assert bars == [[pytest.approx([x, y - 0.1]), pytest.approx([x, y + 0.1])] for x, y in marks]


@pytest.mark.parametrize("name", ["main-table", "batch-repetition", "members", "active-filters"])
def test_tables_without_any_run_show_the_papers_numbers(name: str) -> None:
    made = report(name, None)
    points = sum(len(line.get_xdata()) for axes in draw(made).axes for line in axes.lines)
    assert points == sum(cell.paper is not None for cell in made.cells.values()) > 0
