"""Charts of classes and filters: accuracy by class, confusion, norms of the encoders, active filters."""

from collections.abc import Sequence
from typing import Any

from mixmo.reports.analysis import ClassScore
from mixmo.reports.filters import Filters
from mixmo.reports.vega import ACROSS, PICKED, Chart, Spec, axis, colours, keys, lines, rounded, shapes, stacked, whole

THRESHOLDS = {"values": [0.2, 0.3, 0.4, 0.5]}
DRAWN = 30  # classes in a chart: of more, the worst
SQUARE = 40  # classes of a confusion matrix that can be read


def class_chart(scores: Sequence[ClassScore]) -> Chart:
    """Return the accuracy of each class, of the ensemble and its members; of many classes, of the worst."""
    worst = sorted(scores, key=lambda score: score.top1)[:DRAWN]
    names = ["ensemble", *(f"member {m}" for m in range(len(worst[0].members)))] if worst[0].members else ["network"]
    columns: dict[str, list[Any]] = {"name": [], "y": [], "series": [], "samples": []}
    for score in worst:
        for name, value in reversed(list(zip(names, (score.top1, *score.members), strict=True))):  # the first is on top
            columns["name"].append(score.name)
            columns["y"].append(round(100 * value, 4))
            columns["series"].append(name)
            columns["samples"].append(score.samples)
    label: Spec = {"field": "name", "type": "nominal", "sort": None, "title": None}
    tooltip = [
        {"field": "name", "title": "class"},
        {"field": "series", "title": " "},
        {"field": "y", "title": "Top1 %", "format": ".2f"},
        {"field": "samples", "title": "images"},
    ]
    spec = {
        "data": {"name": "classes"},
        "mark": {"type": "point", "size": 60, "strokeWidth": 1.8, "opacity": 1},
        "encoding": {
            "y": {**label, "axis": {"grid": True}},
            "x": axis("Top1 % of the class", axis=ACROSS),
            "color": colours(names),
            "shape": shapes(names),
            "fill": {"condition": {"test": f"datum.series === '{names[0]}'", "value": "var(--c0)"}, "value": None},
            "opacity": PICKED,
            "tooltip": tooltip,
        },
    }
    lowest = ", ".join(f"{score.name} {100 * score.top1:.1f} %" for score in worst[:3])
    which = f"The {DRAWN} worst of {len(scores)} classes" if len(scores) > DRAWN else "All classes, the worst first"
    alt = f"Accuracy by class. {which}. Lowest: {lowest}."
    about = f"{which}. The axis does not begin at zero."
    drawn = whole(spec, 16 * len(worst) + 20)
    return Chart("Accuracy by class", alt, drawn, {"classes": columns}, about, keys(names, "open"))


def confusion_chart(matrix: Sequence[Sequence[int]], names: Sequence[str]) -> Chart:
    """Return the confusion matrix, in shares of each true class."""
    columns: dict[str, list[Any]] = {"true": [], "predicted": [], "count": [], "share": []}
    for name, row in zip(names, matrix, strict=True):
        for other, count in zip(names, row, strict=True):
            columns["true"].append(name)
            columns["predicted"].append(other)
            columns["count"].append(count)
            columns["share"].append(round(count / max(1, sum(row)), 6))
    place: Spec = {"type": "nominal", "sort": list(names), "axis": {"labelLimit": 90}}
    tooltip = [
        {"field": "true"},
        {"field": "predicted"},
        {"field": "count", "title": "images"},
        {"field": "share", "title": "of the true class", "format": ".1%"},
    ]
    spec: Spec = {
        "data": {"name": "cells"},
        "mark": {"type": "rect", "stroke": "var(--grid)", "strokeWidth": 0.5, "fill": "var(--c0)"},
        "encoding": {
            "y": {**place, "field": "true"},
            "x": {**place, "field": "predicted", "axis": {"labelLimit": 90, "labelAngle": -45}},
            "fillOpacity": {
                "field": "share",
                "type": "quantitative",
                "legend": None,
                "scale": {"type": "sqrt", "domain": [0, 1], "range": [0, 1]},
            },
            "tooltip": tooltip,
        },
    }
    right = sum(row[i] for i, row in enumerate(matrix))
    alt = (
        f"Confusion matrix of {len(names)} classes; {right:,} of {sum(map(sum, matrix)):,} images are on its diagonal."
    )
    about = "Rows are true classes. A stronger colour is a larger share of the row (on a square-root scale)."
    return Chart("Confusion", alt, whole(spec, 18 * len(names) + 60), {"cells": columns}, about)


def encoder_chart(found: Filters) -> Chart:
    """Return the l1 norm of each encoder's filter for each channel, as the paper's figure of encoders."""
    names = [f"encoder {m}" for m in range(len(found.encoders))]
    channels = range(len(found.encoders[0]))
    first = sorted(channels, key=lambda c: -found.encoders[0][c])
    columns: dict[str, list[Any]] = {"channel": [], "place": [], "y": [], "series": []}
    for name, norms in zip(names, found.encoders, strict=True):
        columns["channel"] += first
        columns["place"] += list(channels)
        columns["y"] += rounded([norms[c] for c in first])
        columns["series"] += [name] * len(norms)
    tooltip = [
        {"field": "series", "title": " "},
        {"field": "channel"},
        {"field": "y", "title": "l1 norm", "format": ".3f"},
    ]
    spec = {
        "data": {"name": "norms"},
        "mark": {"type": "point", "filled": True, "size": 55},
        "encoding": {
            "x": axis(
                "channels, by the norm of encoder 0", "place", axis={"tickMinStep": 1, "grid": False}, nice=False
            ),
            "y": axis("l1 norm of the filter", zero=True),
            "color": colours(names),
            "shape": shapes(names),
            "opacity": PICKED,
            "tooltip": tooltip,
        },
    }
    apart = "" if found.separation is None else f"Separation {found.separation:.3f} (1: no channel is used by both)."
    alt = f"Norms of the filters of {len(names)} encoders in {len(first)} channels. {apart}"
    return Chart("Encoders", alt, whole(spec, 220), {"norms": columns}, apart, keys(names, "point"))


def activity_chart(active: dict[str, dict[float, float]]) -> Chart:
    """Return the share of active filters over the threshold, of each run."""
    series = {name: (list(shares), [100 * share for share in shares.values()]) for name, shares in active.items()}
    spec = lines(
        list(series), axis("threshold", "x", nice=False, axis=THRESHOLDS), axis("active %", domain=[0, 100]), "curves"
    )
    ends = "; ".join(f"{name}: {y[0]:.1f} % at {x[0]}, {y[-1]:.1f} % at {x[-1]}" for name, (x, y) in series.items())
    about = (
        "Filters of the core with an l1 norm of at least the threshold times their layer's largest; mean over layers."
    )
    return Chart("Active filters", f"Active filters. {ends}.", spec, {"curves": stacked(series)}, about)
