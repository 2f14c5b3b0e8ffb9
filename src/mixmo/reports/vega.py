"""Charts as Vega-Lite specifications, and the JavaScript that draws them.

Colours are CSS variables, so that theme and print change them without drawing again. Names of runs and classes are
values of the data or text of a title, never names of fields: Vega would read `a.b` or `a[0]` as a path.
"""

import functools
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from mixmo.utils.errors import UserError

Spec = dict[str, Any]
Columns = Mapping[str, Sequence[Any]]

COLOURS = 6  # --c0, --c1, ... of the style sheet, told apart by colour-blind readers too
DASHES: list[list[int]] = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]  # after the last colour, the first with other dashes
# As the page's: Vega measures labels before it draws them, and does not know what would be inherited.
FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Arial, sans-serif"
CONFIG: Spec = {
    "background": "transparent",
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--soft)",
        "titleColor": "var(--soft)",
        "gridColor": "var(--grid)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titlePadding": 8,
        "labelFlush": False,
        "labelLimit": 240,
    },
}


SHAPES = {"circle": "●", "square": "■", "triangle-up": "▲", "diamond": "◆", "cross": "✚"}  # with their characters
OPEN = "○□△◇✛"

ACROSS: Spec = {"tickCount": {"expr": "ceil(width / 65)"}}  # ticks of a horizontal axis, also of a phone's
MARK: Spec = {"type": "point", "filled": True, "opacity": 1, "stroke": "var(--card)", "strokeWidth": 1}
PICKED = {"condition": {"test": "picked === '' || datum.series === picked", "value": 1}, "value": 0.1}  # in the legend


class Chart(NamedTuple):
    """A chart with its words: a title, a caption, and for those who do not see it what it shows."""

    title: str
    alt: str
    spec: Spec
    data: dict[str, Columns]  # by the names that the specification refers to
    caption: str = ""
    keys: tuple["Key", ...] = ()  # of its legend, which is HTML: it wraps, and one legend can serve several charts


class Key(NamedTuple):
    """An entry of a legend."""

    name: str
    colour: int
    line: str  # solid, dashed, dotted or double; empty where marks are points or areas
    mark: str  # a character


def keys(names: Sequence[str], kind: str = "line") -> tuple[Key, ...]:
    """Return the legend of series; none of one alone. `kind`: line, point, area, or open: only the first is filled."""
    styles, shapes = ("solid", "dashed", "dotted", "double"), list(SHAPES.values())
    if kind == "open":
        shapes[1:] = OPEN[1:]
    return tuple(
        Key(
            name,
            i % COLOURS,
            styles[i // COLOURS % len(styles)] if kind == "line" else "",
            "■" if kind == "area" else shapes[i % len(shapes)],
        )
        for i, name in enumerate(names if len(names) > 1 else ())
    )


def installed() -> bool:
    """Return whether the JavaScript can be had."""
    return find_spec("vl_convert") is not None


@functools.cache
def javascript() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script.

    Another process bundles it: it takes a second and a hundred megabytes, in which no thread of this one would run.
    """
    if not installed():
        raise UserError("a report needs vl-convert-python, which has the charts; pip install 'mixmo[report]'")
    code = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"
    done = subprocess.run(  # in a session of its own: Ctrl-C in a terminal is for the training
        [sys.executable, "-c", code],
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    if done.returncode:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise UserError(f"vl-convert-python does not work ({reason}); install it again: pip install 'mixmo[report]'")
    return done.stdout.decode()


def rounded(values: Sequence[Any]) -> list[Any]:
    """Return numbers with seven digits, and None for NaN and infinity, which JSON does not have."""
    return [
        (float(f"{value:.7g}") if math.isfinite(value) else None) if isinstance(value, float) else value
        for value in values
    ]


def stacked(series: Mapping[str, tuple[Sequence[float], Sequence[float | None]]]) -> dict[str, list[Any]]:
    """Return curves by name as the columns x, y and series, without points that are not there."""
    columns: dict[str, list[Any]] = {"x": [], "y": [], "series": []}
    for name, (x, y) in series.items():
        points = [(a, b) for a, b in zip(rounded(x), rounded(y), strict=True) if a is not None and b is not None]
        columns["x"] += [point[0] for point in points]
        columns["y"] += [point[1] for point in points]
        columns["series"] += [name] * len(points)
    return columns


def colours(names: Sequence[str]) -> Spec:
    """Return the encoding of series by colour, in this order."""
    scale = {"domain": list(names), "range": [f"var(--c{i % COLOURS})" for i in range(len(names))]}
    return {"field": "series", "type": "nominal", "scale": scale, "legend": None}


def shapes(names: Sequence[str]) -> Spec:
    """Return the encoding of series by the shape of their marks."""
    scale = {"domain": list(names), "range": [list(SHAPES)[i % len(SHAPES)] for i in range(len(names))]}
    return {"field": "series", "type": "nominal", "scale": scale, "legend": None}


def dashes(names: Sequence[str]) -> Spec:
    """Return the encoding of series by dashes, which differ where colours repeat."""
    scale = {"domain": list(names), "range": [DASHES[i // COLOURS % len(DASHES)] for i in range(len(names))]}
    return {"field": "series", "type": "nominal", "scale": scale, "legend": None}


def axis(title: str, field: str = "y", **more: Any) -> Spec:
    """Return a quantitative axis; it need not begin at zero unless `zero` says so."""
    scale = {"nice": more.pop("nice", True)} | {key: more.pop(key) for key in ("type", "domain") if key in more}
    if "type" not in scale:  # a logarithm has no zero
        scale["zero"] = more.pop("zero", False)
    ticks = more.pop("axis", {})
    if field != "y" and not ticks.keys() & {"values", "tickCount"}:
        ticks = {**ACROSS, **ticks}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": ticks, **more}


def lines(names: Sequence[str], x: Spec, y: Spec, data: str, height: int = 220, step: bool = False) -> Spec:
    """Return curves with a value at the pointer.

    Args:
        names: The series, in the order of their colours.
        x: Encoding of the column x.
        y: Encoding of the column y.
        data: Name of the data: columns x, y and series.
        height: In pixels.
        step: Whether a value holds from the one before, as it is of a whole epoch.
    """
    shown = [{"field": "series", "type": "nominal", "title": " "}] if len(names) > 1 else []
    formats = [{**{k: e[k] for k in ("field", "type", "title")}, "format": f} for e, f in ((x, "~g"), (y, ".4~f"))]
    curves: Spec = {
        "data": {"name": data},
        "mark": {"type": "line", "interpolate": "step-before" if step else "linear", "strokeWidth": 1.8},
        "encoding": {
            "x": x,
            "y": y,
            "color": colours(names),
            "opacity": PICKED,
        },
    }
    if len(names) > COLOURS:
        curves["encoding"]["strokeDash"] = dashes(names)
    points = {
        "data": {"name": data},
        "mark": {"type": "point", "filled": True, "size": 55},
        "params": [
            {"name": "near", "select": {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"}}
        ],
        "encoding": {
            "x": x,
            "y": y,
            "color": colours(names),
            "opacity": {"condition": {"param": "near", "empty": False, "value": 1}, "value": 0},
            "tooltip": [*shown, *formats],
        },
    }
    return whole({"layer": [curves, points]}, height)


def whole(spec: Spec, height: int) -> Spec:
    """Return a specification with what every chart has: the width of its place, a height, the look, `picked`."""
    spec = {**spec, "params": [{"name": "picked", "value": ""}]}
    fit = {"width": "container", "height": height, "autosize": {"type": "fit-x", "contains": "padding"}}
    return {**fit, **spec, "config": CONFIG}
