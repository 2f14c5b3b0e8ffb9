"""All runs below a folder: state, progress, scores and short curves of each, read again only where a file changed."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mixmo.metrics.report import json_ready
from mixmo.recipes.schema import Recipe
from mixmo.reports.naming import method
from mixmo.reports.run_data import TRACES
from mixmo.reports.run_state import DAMAGED, describe, locked_inodes
from mixmo.reproduce.store import DERIVED
from mixmo.storage.plain_json import parse_json
from mixmo.storage.plain_yaml import read_yaml
from mixmo.utils.errors import UserError, first_line
from mixmo.utils.text import printable

DEEPEST = 8  # folders below the given one
POINTS = 60  # of a curve
SCORES = ("top1", "nll", "nllc", "ece")
VARIED = ("width", "mask", "alpha", "p", "r", "repetition", "rho", "encoders", "heads", "pixel")  # what studies vary
CURVES = {"top1": ("test", "ensemble", "top1"), "nll": ("test", "ensemble", "nll"), "loss": ("train", "loss")}


@dataclass
class RunRow:
    """One run of the list."""

    run: str  # its path below the folder
    state: str = "stopped"
    method: str = ""  # the nearest named recipe
    members: int | None = None
    epoch: int = 0  # the last scored one
    epochs: int | None = None
    top1: float | None = None  # shares and scores of the last scored epoch
    nll: float | None = None
    nllc: float | None = None
    ece: float | None = None
    seconds: float | None = None  # of training so far
    left: float | None = None  # seconds, of a run that is being trained
    updated: float = 0.0  # when it was last changed, in seconds since 1970
    error: str | None = None  # why something of it cannot be read
    curves: dict[str, list[float | None]] = field(default_factory=dict)  # epoch, top1, nll, loss

    def to_dict(self) -> dict[str, Any]:
        return dict(json_ready(asdict(self)))


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run directories below a folder, sorted; of a run of several networks, those of its networks."""
    seen: set[str] = set()

    def walk(path: Path, depth: int) -> Iterator[Path]:
        real = os.path.realpath(path)
        try:
            entries = [] if real in seen else sorted(os.scandir(path), key=lambda entry: entry.name)
        except OSError:  # unreadable, or removed meanwhile
            return
        seen.add(real)
        traces = {entry.name for entry in entries} & set(TRACES)
        is_run = bool(traces) and (path.parent.name != DERIVED or traces != {"scores.json"})
        inner = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
        networks = [entry for entry in inner if entry.name.isdecimal() and is_run]
        networks = [entry for entry in networks if any(os.path.exists(f"{entry.path}/{trace}") for trace in TRACES)]
        if is_run and not networks:
            yield path
        elif depth < DEEPEST:
            for entry in networks if is_run else inner:
                yield from walk(Path(entry.path), depth + 1)

    yield from walk(folder, 0)


class Listing:
    """The runs below a folder. `read` reads what has changed since the last time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[Path, _Files] = {}

    def read(self) -> list[RunRow]:
        held = locked_inodes()
        paths = list(find_runs(self.folder))
        self._files = {path: self._files.get(path) or _Files(path) for path in paths}
        return [self._row(path, files, held) for path, files in self._files.items()]

    def paths(self) -> dict[str, Path]:
        """Return the folders of the runs that were read last, by their names in the list."""
        return {self.name(path): path for path in self._files}

    def name(self, path: Path) -> str:
        return printable(str(path.relative_to(self.folder)) if path != self.folder else path.resolve().name)

    def _row(self, path: Path, files: "_Files", held: set[int]) -> RunRow:
        row = RunRow(self.name(path))
        try:
            files.fill(row)
            row.state = describe(path, bool(files.scores), held)
        except Exception as error:  # a file of another version may hold anything
            row.error = printable(first_line(error))
        if row.error is not None and row.state != "training":
            row.state = DAMAGED
        if row.state == "training" and row.epochs and row.epoch and row.seconds is not None:
            spent = row.seconds + files.evaluation
            since = time.time() - files.logged
            row.left = max(0.0, spent / row.epoch * (row.epochs - row.epoch) - since)
        return row


class _Files:
    """What was read of one run's files, with the size and time that they had then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stamps: dict[str, tuple[int, int]] = {}
        self.recipe: dict[str, Any] = {}
        self.method, self.errors = "", dict[str, str]()
        self.scores: dict[str, Any] = {}
        self.lines: list[dict[str, float | None]] = []
        self.last: dict[str, Any] = {}
        self.read_to, self.logged, self.evaluation = 0, 0.0, 0.0

    def fill(self, row: RunRow) -> None:
        """Read what has changed, and write it into a row."""
        for name, read in (
            ("recipe.yaml", self._recipe),
            ("metrics.jsonl", self._metrics),
            ("scores.json", self._scores),
        ):
            stamp = self._stamp(name)
            if stamp != self.stamps.get(name):
                self.errors.pop(name, None)
                try:
                    read()
                except Exception as error:
                    self.errors[name] = f"{name} cannot be read ({first_line(error)})"
                self.stamps[name] = stamp
        row.method, row.members, row.epochs = self.method, self.recipe.get("members"), self.recipe.get("epochs")
        of = (self.scores.get("last") or self.last.get("test") or {}).get("ensemble") or {}
        for name in SCORES:
            setattr(row, name, of.get(name))
        row.epoch = int(self.last.get("epoch") or 0)
        row.seconds = self.scores.get("seconds", self.last.get("seconds"))
        row.updated = max((stamp[1] / 1e9 for stamp in self.stamps.values()), default=0.0)
        row.curves = _thinned(self.lines)
        row.error = printable("; ".join(self.errors.values())) or None

    def _stamp(self, name: str) -> tuple[int, int]:
        try:
            status = (self.path / name).stat()
        except OSError:
            return (-1, 0)
        return status.st_size, status.st_mtime_ns

    def _recipe(self) -> None:
        content = read_yaml(self.path / "recipe.yaml")
        self.recipe = content if isinstance(content, dict) else {}
        if not self.recipe:
            raise UserError("it has no fields")
        self.method = str(self.recipe.get("dataset", ""))
        with suppress(UserError):  # of another version, or with user-defined components
            name, changes = method(Recipe.from_dict(self.recipe))
            shown = [f"{field} = {changes[field]}" for field in VARIED if field in changes]
            self.method = ", ".join([name, *shown])

    def _scores(self) -> None:
        file = self.path / "scores.json"
        self.scores = {}
        if file.exists():
            content = parse_json(file.read_text(encoding="utf-8"))
            self.scores = content if isinstance(content, dict) else {}

    def _metrics(self) -> None:
        """Read the lines that were appended since the last time; all, if the file was written anew."""
        file, before = self.path / "metrics.jsonl", self.stamps.get("metrics.jsonl", (0, 0))[0]
        if not file.exists():
            return
        with file.open("rb") as opened:
            if file.stat().st_size < max(before, self.read_to) or not self._continues(opened):
                self.lines, self.read_to, self.last, self.evaluation = [], 0, {}, 0.0
            opened.seek(self.read_to)
            new = opened.read()
        whole = new[: new.rfind(b"\n") + 1]  # without the half of a line that is being written
        self.read_to += len(whole)
        self.logged = file.stat().st_mtime
        for text in whole.splitlines():
            line = parse_json(text)
            self.last = line
            self.evaluation += line.get("evaluation_seconds") or 0.0
            self.lines.append({"epoch": line["epoch"]} | {name: _inside(line, path) for name, path in CURVES.items()})

    def _continues(self, opened: Any) -> bool:
        """Whether what was read ends where a line ends still."""
        if self.read_to == 0:
            return True
        opened.seek(self.read_to - 1)
        return bool(opened.read(1) == b"\n")


def _inside(line: dict[str, Any], path: tuple[str, ...]) -> float | None:
    value: Any = line
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _thinned(lines: list[dict[str, float | None]]) -> dict[str, list[float | None]]:
    """Return at most `POINTS` points of the curves, the first and the last among them."""
    count = min(POINTS, len(lines))
    places = [round(i * (len(lines) - 1) / max(1, count - 1)) for i in range(count)]
    return {name: [_digits(lines[place][name]) for place in places] for name in ("epoch", *CURVES)} if lines else {}


def _digits(value: float | None) -> float | None:
    return value if value is None else float(f"{value:.5g}")
