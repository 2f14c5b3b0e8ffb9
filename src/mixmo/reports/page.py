"""The HTML of a report: sections of cards, charts, tables and pictures, in one file that needs no other.

Jinja escapes every text; JSON inside the page is escaped as well. A content security policy forbids the page to load
anything from elsewhere, so that not even a mistake here could.
"""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from mixmo._version import __version__
from mixmo.reports import vega
from mixmo.utils.text import printable

MARK = "<!-- mixmo report -->"  # in the first lines, so that only a report is overwritten
TEMPLATES = files("mixmo.reports") / "templates"


class Card(NamedTuple):
    """A number that is seen first."""

    label: str
    value: str
    note: str = ""


class Cards(NamedTuple):
    cards: list[Card]
    kind: str = "cards"


class Charts(NamedTuple):
    charts: list[vega.Chart]
    keys: tuple[vega.Key, ...] = ()  # a legend that all of them share
    kind: str = "charts"


Cell = str | tuple[str, str]  # a text; or with a note in small type below


class Table(NamedTuple):
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    words: int = 1  # columns of words, to the left; the others are numbers
    title: str = ""
    long: bool = False  # folded: its title opens it
    bold: frozenset[tuple[int, int]] = frozenset()  # rows and columns of the best values
    kind: str = "table"


class Tables(NamedTuple):
    """Tables beside each other, where the page is wide enough."""

    tables: Sequence[Table]
    kind: str = "tables"


class Picture(NamedTuple):
    image: str | None  # a data URI
    alt: str
    lines: list[tuple[str, str]]  # a word before, and a text


class Gallery(NamedTuple):
    pictures: list[Picture]
    kind: str = "gallery"


class Text(NamedTuple):
    text: str
    kind: str = "text"


Block = Cards | Charts | Table | Tables | Gallery | Text


@dataclass
class Section:
    title: str
    blocks: list[Block]
    about: str = ""


@dataclass
class Document:
    """All that a report says."""

    title: str
    subtitle: str
    state: str  # "finished", "training", ...
    sections: list[Section] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    reload: int | None = None  # seconds after which the page is read again, while a training changes it


def render(document: Document) -> str:
    """Return the page."""
    charts: list[dict[str, Any]] = []
    data: dict[str, Any] = {}
    template = _environment().get_template("report.html")

    def place(chart: vega.Chart) -> str:
        """Keep a chart for the script, and return the id of its place."""
        own = {name: f"d{len(data) + i}" for i, name in enumerate(chart.data)}
        data.update({own[name]: columns for name, columns in chart.data.items()})
        charts.append({"spec": chart.spec, "data": own})
        return f"chart{len(charts) - 1}"

    def content() -> Markup:
        """The charts that were placed, as JSON that cannot end the script around it."""
        text = json.dumps({"charts": charts, "data": data}, separators=(",", ":"))
        return Markup(text.replace("<", "\\u003c"))

    return template.render(
        document=document,
        sections=[(f"s{i}", each) for i, each in enumerate(document.sections)],
        place=place,
        content=content,
        vega=lambda: Markup(vega.javascript() if charts else ""),
        mark=Markup(MARK),
        style=read_template("report.css"),
        script=read_template("report.js"),
        version=__version__,
    )


@functools.cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FunctionLoader(lambda name: str(read_template(name)))
    made = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made.finalize = lambda value: (
        printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
    )
    return made


@functools.cache
def read_template(name: str) -> Markup:
    """Return a file of the templates."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def percent(value: float | None, digits: int = 2) -> str:
    """Return a share in percent.

    >>> percent(0.8095), percent(None)
    ('80.95 %', '–')
    """
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def signed(value: float | None, digits: int = 4) -> str:
    """Return a difference with its sign; a minus as wide as the plus."""
    return "–" if value is None else f"{value:+.{digits}f}".replace("-", "\u2212")


def plain(value: Any) -> str:
    """Return a value of a recipe or an environment as text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(plain, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
