"""The paper's figures over several runs: diversity against accuracy, parameters against NLL."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from mixmo.reports.run_data import RunData
from mixmo.reports.vega import MARK, PICKED, Chart, Spec, axis, colours, rounded, shapes, whole
from mixmo.reproduce import scores
from mixmo.reproduce.plan import published
from mixmo.reproduce.report import raw_figures

HEIGHT = 320  # pixels of a chart
LETTER = 13 / HEIGHT  # of a letter, and below of a mark and to the end of its letter, as shares of a phone's chart
SIZE, REACH = 0.03, 0.08
PAPER = {"vanilla": "1-Net", "cutmix": "1-Net + CutMix", "linear-mixmo": "Linear-MixMo", "cut-mixmo": "Cut-MixMo"}


class Box(NamedTuple):
    """A place in a chart, in shares of its width and height."""

    left: float
    right: float
    bottom: float
    top: float


def scatter(names: Sequence[str], columns: dict[str, list[Any]], x: Spec, y: Spec, under: Sequence[Spec] = ()) -> Spec:
    """Return one point for each run, with its letter beside it and its name at the pointer.

    A column `low` holds where a bar below each point ends.
    """
    tooltip: list[Spec] = [{"field": "series", "title": " "}]
    tooltip += [{"field": e["field"], "type": "quantitative", "title": e["title"], "format": ".4~f"} for e in (x, y)]
    encoding: Spec = {"x": x, "y": y, "color": colours(names), "opacity": PICKED, "tooltip": tooltip}
    columns["letter"] = [name.partition(" ")[0] for name in columns["series"]]
    columns["side"], columns["height"] = _letters(columns, x["scale"], y["scale"])
    points: Spec = {"data": {"name": "points"}, "mark": {**MARK, "size": 90}}
    layers: list[Spec] = [{**points, "encoding": {**encoding, "shape": shapes(names)}}]
    at: Spec = {**y, "field": "height"}
    for side, (align, sign) in enumerate((("left", 1), ("right", -1))):
        here = {"data": {"name": "points"}, "transform": [{"filter": f"datum.side === {side}"}]}
        text = {"type": "text", "fontSize": 11, "fontWeight": 600, "align": align, "dx": 9 * sign}
        layers.append({**here, "mark": text, "encoding": {**encoding, "y": at, "text": {"field": "letter"}}})
        moved = {**here, "transform": [*here["transform"], {"filter": "datum.height !== datum.y"}]}
        line = {"type": "rule", "strokeWidth": 0.75, "x2Offset": 8 * sign}  # from a mark to its letter
        layers.insert(
            0, {**moved, "mark": line, "encoding": {**encoding, "x2": {"field": "x"}, "y2": {"field": "height"}}}
        )
    return whole({"layer": [*under, *layers]}, HEIGHT)


def _letters(columns: dict[str, list[Any]], across: Spec, up: Spec) -> tuple[list[int], list[float]]:
    """Return the side, left or right, and the height of each mark's letter, where no mark, bar or other letter is."""
    u, v = _shares(columns["x"], across), _shares(columns["y"], up)
    lows = _shares(columns["low"], up) if "low" in columns else v
    marks = [Box(a - SIZE / 2, a + SIZE / 2, low, b) for a, b, low in zip(u, v, lows, strict=True)]
    sides, heights = [0] * len(u), list(v)
    letters: list[Box] = []
    for i in sorted(range(len(v)), key=lambda i: v[i]):
        free = []
        for left, right in ((u[i] + SIZE / 2, u[i] + REACH), (u[i] - REACH, u[i] - SIZE / 2)):
            height = v[i]
            for box in sorted([*letters, *marks[:i], *marks[i + 1 :]], key=lambda box: box.bottom):
                beside = left < box.right and box.left < right
                if beside and box.bottom - LETTER < height < box.top + LETTER:
                    height = box.top + LETTER
            free.append((height, Box(left, right, height, height)))
        sides[i] = int(free[1][0] < free[0][0])
        heights[i], box = free[sides[i]]
        letters.append(box)
    bottom, top = up["domain"]
    return sides, [
        y if a == b else bottom + a * (top - bottom) for y, a, b in zip(columns["y"], heights, v, strict=True)
    ]


def _shares(values: Sequence[float], scale: Spec) -> list[float]:
    """Return where values are on an axis, from 0 to 1."""
    of = math.log if scale.get("type") == "log" else float
    low, high = map(of, scale["domain"])
    return [(of(value) - low) / (high - low) for value in values]


def diversity_chart(runs: Sequence[RunData], names: Sequence[str]) -> Chart | None:
    """Return Top1 over the ratio-error of the runs with several members: the ensemble, and below it the mean member."""
    there = [run for run in runs if run.members > 1 and run.score("diversity.ratio_error") is not None]
    if not there:
        return None
    columns: dict[str, list[Any]] = {"x": [], "y": [], "low": [], "series": []}
    for run in there:
        members = [run.score(f"members.{m}.top1") or 0.0 for m in range(run.members)]
        columns["x"].append(run.score("diversity.ratio_error"))
        columns["y"].append(100 * (run.score("top1") or 0.0))
        columns["low"].append(100 * sum(members) / len(members))
        columns["series"].append(run.name)
    columns = {name: rounded(column) for name, column in columns.items()}
    x, y = axis("ratio-error (diversity)", "x"), axis("Top1 %")
    y["scale"]["domain"] = _padded([*columns["y"], *columns["low"]])
    x["scale"]["domain"] = _padded(columns["x"])
    rule: Spec = {
        "data": {"name": "points"},
        "mark": {"type": "rule", "strokeWidth": 1.5},
        "encoding": {"x": x, "y": y, "y2": {"field": "low"}, "color": colours(names), "opacity": PICKED},
    }
    member: Spec = {
        "data": {"name": "points"},
        "mark": {"type": "tick", "orient": "horizontal", "thickness": 2, "width": 12},
        "encoding": {
            "x": x,
            "y": {**y, "field": "low"},
            "color": colours(names),
            "opacity": PICKED,
            "tooltip": [{"field": "series", "title": " "}, {"field": "low", "title": "mean member Top1 %"}],
        },
    }
    spec = scatter(names, columns, x, y, [rule, member])
    best = max(there, key=lambda run: run.score("top1") or 0.0)
    alt = f"Top1 over ratio-error of {len(there)} runs; the best ensemble is {best.name}."
    about = "Marks are ensembles; the end of the bar is the mean of its members."
    return Chart("Diversity against accuracy", alt, spec, {"points": columns}, about)


def parameter_chart(runs: Sequence[RunData], names: Sequence[str]) -> Chart | None:
    """Return calibrated NLL over parameters, with the paper's curves where it has the data set and network."""
    there = [run for run in runs if run.summary.get("parameters") and run.score("nllc") is not None]
    if not there:
        return None
    columns: dict[str, list[Any]] = {
        "x": [run.summary["parameters"] / 1e6 for run in there],
        "y": rounded([run.score("nllc") for run in there]),
        "series": [run.name for run in there],
    }
    ticks = {"values": [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200], "grid": False}
    x, y = axis("parameters (millions, log scale)", "x", type="log", axis=ticks), axis("NLLc (nats)")
    recipes = [run.recipe for run in there]
    wide = all(recipe and recipe.dataset == "cifar100" and recipe.architecture[:6] == "wrn28_" for recipe in recipes)
    under: list[Spec] = []
    data: dict[str, Any] = {"points": columns}
    about = "Lower is better; networks of the same cost stand above each other."
    if wide:
        data |= {"paper": _paper()}
        x["scale"]["domain"] = [1, 300]  # room for the names of the paper's curves
        theirs = {"x": x, "y": y, "detail": {"field": "series"}}
        tooltip = [
            {"field": "series", "title": "the paper"},
            {"field": "y", "title": "NLLc"},
            {"field": "x", "title": "M"},
        ]
        line = {"type": "line", "color": "var(--soft)", "strokeDash": [3, 3], "strokeWidth": 1}
        dot = {"type": "point", "color": "var(--soft)", "size": 28}
        label = {"type": "text", "align": "left", "dx": 6, "fontSize": 10, "color": "var(--soft)"}
        under = [
            {"data": {"name": "paper"}, "mark": line, "encoding": theirs},
            {"data": {"name": "paper"}, "mark": dot, "encoding": {**theirs, "tooltip": tooltip}},
            {"data": {"name": "paper"}, "mark": label, "transform": [{"filter": "datum.last"}]}
            | {"encoding": {"x": x, "y": {**y, "field": "label"}, "text": {"field": "series"}}},
        ]
        about += " Dashed: the paper's, at widths 2 to 14, best epoch, b = 4."
    x["scale"].setdefault("domain", [min(columns["x"]) / 2, 2 * max(columns["x"])])
    y["scale"]["domain"] = _padded([*columns["y"], *data.get("paper", {}).get("y", [])])
    spec = scatter(names, columns, x, y, under)
    least = min(there, key=lambda run: run.score("nllc") or 0.0)
    alt = f"Calibrated NLL over parameters of {len(there)} runs; the lowest is {least.score('nllc'):.4f}, {least.name}."
    return Chart("Parameters against NLL", alt, spec, data, about)


@functools.cache
def _paper() -> dict[str, list[Any]]:
    """The paper's NLLc by width, for methods of one network; `last` marks the end of a line, for its label."""
    columns: dict[str, list[Any]] = {"x": [], "y": [], "series": [], "last": [], "label": []}
    printed, wanted = raw_figures("summary"), dict[tuple[str, int], tuple[float, float]]()
    table, cells = published("summary").table, published("summary").cells
    for (_, j), cell in cells.items():
        column, group = table.columns[j], cell.groups[0]
        figure = printed.get((group, "nllc", cell.which))
        if column.score == "nllc" and column.group in PAPER.values() and figure is not None:
            size = scores.of_recipe("parameters", group[0], len(group)) / 1e6
            wanted[column.group, group[0].width] = (size, figure.value)
    widest, label = max(width for _, width in wanted), 0.0
    for (name, width), (size, value) in sorted(wanted.items(), key=lambda item: item[1][1]):
        columns["x"].append(round(size, 3))
        columns["y"].append(value)
        columns["series"].append(name)
        columns["last"].append(width == widest)
        label = max(value, label + 0.022) if width == widest else label  # names of near curves below each other
        columns["label"].append(label)
    return columns


def calibration_chart(runs: Sequence[RunData], names: Sequence[str]) -> Chart | None:
    """Return ECE over Top1: better to the lower right."""
    there = [run for run in runs if run.score("ece") is not None and run.score("top1") is not None]
    if not there:
        return None
    columns: dict[str, list[Any]] = {
        "x": rounded([100 * (run.score("top1") or 0.0) for run in there]),
        "y": rounded([run.score("ece") for run in there]),
        "series": [run.name for run in there],
    }
    x, y = axis("Top1 %", "x"), axis("ECE")
    x["scale"]["domain"], y["scale"]["domain"] = _padded(columns["x"]), [0, 1.08 * max(columns["y"]) or 1.0]
    best = min(there, key=lambda run: run.score("ece") or 0.0)
    alt = f"Calibration error over accuracy of {len(there)} runs; the best calibrated is {best.name}."
    about = "Expected calibration error without temperature. Better is to the lower right."
    return Chart("Accuracy and calibration", alt, scatter(names, columns, x, y), {"points": columns}, about)


def _padded(values: Sequence[float]) -> list[float]:
    """Return the range of values with a margin, so that no mark lies on the frame."""
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return [low - margin, high + margin]
