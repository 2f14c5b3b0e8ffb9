"""The paper's figures over several runs: diversity against accuracy, parameters against NLL."""

import functools
import math
from collections.abc import Sequence
from typing import Any

from mixmo.reports.run_data import RunData
from mixmo.reports.vega import PICKED, Chart, Spec, axis, colours, rounded, shapes, whole
from mixmo.reproduce import scores
from mixmo.reproduce.plan import published
from mixmo.reproduce.report import raw_figures

HEIGHT, LETTER = 320, 13  # pixels of a chart, and of a letter in it
PAPER = {"vanilla": "1-Net", "cutmix": "1-Net + CutMix", "linear-mixmo": "Linear-MixMo", "cut-mixmo": "Cut-MixMo"}


def scatter(names: Sequence[str], columns: dict[str, list[Any]], x: Spec, y: Spec, under: Sequence[Spec] = ()) -> Spec:
    """Return one point for each run, with its letter beside it and its name at the pointer."""
    tooltip: list[Spec] = [{"field": "series", "title": " "}]
    tooltip += [{"field": e["field"], "type": "quantitative", "title": e["title"], "format": ".4~f"} for e in (x, y)]
    encoding: Spec = {"x": x, "y": y, "color": colours(names), "opacity": PICKED, "tooltip": tooltip}
    columns["letter"] = [name.partition(" ")[0] for name in columns["series"]]
    columns["side"], columns["height"] = _letters(columns["x"], columns["y"], x["scale"], y["scale"])
    layers: list[Spec] = [{"data": {"name": "points"}, "mark": {"type": "point", "filled": True, "size": 90}}]
    layers[0]["encoding"] = {**encoding, "shape": shapes(names)}
    for side, place in enumerate(({"align": "left", "dx": 8}, {"align": "right", "dx": -8})):
        label: Spec = {"data": {"name": "points"}, "mark": {"type": "text", "fontSize": 11, "fontWeight": 600, **place}}
        label["transform"] = [{"filter": f"datum.side === {side}"}]
        at = {"y": {**y, "field": "height"}, "text": {"field": "letter"}}
        layers.append({**label, "encoding": {**encoding, **at}})
    return whole({"layer": [*under, *layers]}, HEIGHT)


def _letters(x: Sequence[float], y: Sequence[float], across: Spec, up: Spec) -> tuple[list[int], list[float]]:
    """Return the side, left or right, and the height of each mark's letter; near ones stand above each other."""
    x = [math.log(value) for value in x] if across.get("type") == "log" else x
    left, right = map(math.log, across["domain"]) if across.get("type") == "log" else across["domain"]
    apart, near = LETTER / HEIGHT * (up["domain"][1] - up["domain"][0]), 0.05 * (right - left)
    sides, heights = [0] * len(y), list(y)
    placed: list[int] = []
    for i in sorted(range(len(y)), key=lambda i: y[i]):
        free = []
        for side, sign in enumerate((1, -1)):
            letters = [heights[j] for j in placed if sides[j] == side and abs(x[j] - x[i]) <= near]
            marks = [y[j] for j in range(len(y)) if 0 < sign * (x[j] - x[i]) <= near]
            height = y[i]
            for other in sorted(letters + marks):
                height = other + apart if abs(other - height) < apart else height
            free.append(height)
        sides[i] = int(free[1] < free[0])
        heights[i] = free[sides[i]]
        placed.append(i)
    return sides, heights


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
    about = "The mark is the ensemble, the bar below it the mean of its members: what diversity gains."
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
