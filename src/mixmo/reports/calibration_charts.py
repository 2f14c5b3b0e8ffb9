"""Charts of confidence: reliability diagrams, histograms, risk over coverage."""

import math
from collections.abc import Mapping
from typing import Any

from mixmo.metrics.diagrams import Reliability
from mixmo.reports.analysis import Analysis, Risk
from mixmo.reports.vega import PICKED, Chart, Spec, axis, colours, keys, lines, rounded, stacked, whole

DIAGONAL: dict[str, list[Any]] = {"x": [0, 1], "y": [0, 1]}
SHARE: dict[str, Any] = {"domain": [0, 1], "nice": False, "axis": {"format": ".0%", "tickCount": 5}}


def interval(right: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share after Wilson: it stays within 0 and 1, also for few samples.

    >>> [round(end, 4) for end in interval(8, 10)]
    [0.4902, 0.9433]
    """
    z = 1.959964
    share = right / count
    middle, width = share + z**2 / (2 * count), z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return (middle - width) / (1 + z**2 / count), (middle + width) / (1 + z**2 / count)


def reliability_chart(title: str, found: Reliability, error: float | None, about: str) -> Chart:
    """Return accuracy over confidence, with the 95 % interval of each bin; the diagonal is perfect calibration."""
    rows = [row for row in zip(*(column.tolist() for column in found), strict=True) if row[0]]
    ends = [interval(count * accuracy, count) for count, _, accuracy in rows]
    columns = {
        "count": [count for count, _, _ in rows],
        "x": rounded([confidence for _, confidence, _ in rows]),
        "y": rounded([accuracy for _, _, accuracy in rows]),
        "gap": rounded([confidence - accuracy for _, confidence, accuracy in rows]),
        "low": rounded([low for low, _ in ends]),
        "high": rounded([high for _, high in ends]),
    }
    x, y = axis("confidence", "x", **SHARE), axis("accuracy", **SHARE)
    tooltip = [
        {"field": "x", "title": "mean confidence", "format": ".2%"},
        {"field": "y", "title": "accuracy", "format": ".2%"},
        {"field": "gap", "title": "confidence − accuracy", "format": "+.2%"},
        {"field": "count", "title": "images", "format": ","},
    ]
    size = {"field": "count", "type": "quantitative", "legend": None, "scale": {"range": [30, 260]}}
    spec: Spec = {
        "layer": [
            {"data": {"name": "diagonal"}, "mark": {"type": "line", "color": "var(--line)", "strokeDash": [4, 4]}}
            | {"encoding": {"x": x, "y": y}},
            {"data": {"name": "bins"}, "mark": {"type": "rule", "color": "var(--c0)", "opacity": 0.6}}
            | {"encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}},
            {"data": {"name": "bins"}, "mark": {"type": "point", "filled": True, "opacity": 1, "color": "var(--c0)"}}
            | {"encoding": {"x": x, "y": y, "size": size, "tooltip": tooltip}},
        ]
    }
    worst = max(rows, key=lambda row: row[0] * abs(row[1] - row[2]))
    said = "" if error is None else f"ECE {error:.4f}. "
    alt = (
        f"Reliability diagram, {title.lower()}: {said}{len(rows)} bins; the largest share of the error is at a "
        f"confidence of {worst[1]:.0%}, where the accuracy is {worst[2]:.0%}."
    )
    return Chart(title, alt, whole(spec, 260), {"bins": columns, "diagonal": DIAGONAL}, f"{said}{about}")


def histogram_chart(found: Reliability) -> Chart:
    """Return how many images have which confidence, right and wrong ones."""
    width = 1 / len(found.samples)
    columns: dict[str, list[Any]] = {"from": [], "to": [], "count": [], "series": []}
    for b, (count, accuracy) in enumerate(zip(found.samples.tolist(), found.accuracy.tolist(), strict=True)):
        right = round(count * accuracy)
        for name, value in (("correct", right), ("wrong", count - right)):
            columns["from"].append(round(b * width, 4))
            columns["to"].append(round((b + 1) * width, 4))
            columns["count"].append(value)
            columns["series"].append(name)
    tooltip = [
        {"field": "series", "title": " "},
        {"field": "count", "title": "images", "format": ","},
        {"field": "from", "title": "confidence above", "format": ".0%"},
    ]
    encoding = {
        "x": {**axis("confidence", "from", **SHARE), "bin": "binned"},
        "x2": {"field": "to"},
        "y": {**axis("images", "count", zero=True), "stack": "zero"},
        "color": colours(["correct", "wrong"]),
        "opacity": PICKED,
        "tooltip": tooltip,
    }
    spec = {"data": {"name": "bins"}, "mark": {"type": "bar", "stroke": "var(--card)", "strokeWidth": 0.5}}
    total, wrong = sum(columns["count"]), sum(columns["count"][1::2])
    sure = found.samples[-2:].sum().item()
    alt = f"Histogram of the confidence of {total:,} images, {wrong:,} of them wrong; {sure:,} have more than 90 %."
    about = "Probability of the predicted class, before temperature scaling."
    drawn = whole({**spec, "encoding": encoding}, 260)
    return Chart("Confidence", alt, drawn, {"bins": columns}, about, keys(["correct", "wrong"], "area"))


def risk_chart(risks: Mapping[str, Risk]) -> Chart:
    """Return the error rate among the most confident images, over their share."""
    series = {name: (risk.coverage, [100 * value for value in risk.risk]) for name, risk in risks.items()}
    x = axis("coverage", "x", **SHARE)
    spec = lines(list(series), x, axis("error rate %", zero=True), "curves", 260)
    areas = "; ".join(f"{name} {risk.aurc:.4f}" for name, risk in list(risks.items())[:6])
    alt = f"Risk-coverage curves. Area under the curve (AURC): {areas}."
    about = f"Error rate of the most confident images, over their share of all images. AURC: {areas}."
    return Chart("Risk and coverage", alt, spec, {"curves": stacked(series)}, about, keys(list(series)))


def calibration_charts(found: Analysis, ece: float | None, ecec: float | None) -> list[Chart]:
    """Return the charts of one run."""
    one, two = found.temperatures
    fitted = f"Each half of the images at the temperature fitted to the other half ({one:.3f} and {two:.3f})."
    bars = "Bars are 95 % intervals; a larger point has more images."
    return [
        reliability_chart("Reliability before temperature scaling", found.before, ece, bars),
        reliability_chart("Reliability after temperature scaling", found.after, ecec, fitted),
        histogram_chart(found.histogram),
        risk_chart(found.risk),
    ]
