"""Read a run directory: everything that can be read, and a sentence about everything that cannot.

Nothing here raises for a run that is unfinished, damaged or of an earlier version; what is left of it is shown.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mixmo.metrics.logits import LabelledLogits
from mixmo.metrics.report import evaluate
from mixmo.recipes.protocols import FACTS
from mixmo.recipes.schema import Recipe
from mixmo.reports.robustness import Measured, read_measured
from mixmo.reproduce.scores import size_of
from mixmo.runs.directory import WHICH, Run
from mixmo.runs.metrics_log import flat
from mixmo.storage.plain_json import parse_json
from mixmo.storage.plain_yaml import read_yaml
from mixmo.storage.weights import is_stored
from mixmo.utils.errors import UserError, first_line
from mixmo.utils.text import printable

T = TypeVar("T")
TRACES = ("recipe.yaml", "metrics.jsonl", "scores.json")  # a folder with one of them was a run


@dataclass
class RunData:
    """A run as far as it can be read. Numbers are by path, such as `ensemble.top1` or `members.0.nll`."""

    path: Path
    name: str  # to show
    recipe: Recipe | None = None
    fields: dict[str, Any] = field(default_factory=dict)  # of the recipe, as they are in the file
    finished: bool = False
    scores: dict[str, dict[str, float]] = field(default_factory=dict)  # numbers by "last", "best" or "epoch N"
    summary: dict[str, Any] = field(default_factory=dict)  # parameters, multiply_adds, best_epoch, best_by, seconds
    curves: dict[str, list[float]] = field(default_factory=dict)  # columns of metrics.jsonl, NaN where not there
    environment: dict[str, Any] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)
    logits: LabelledLogits | None = None
    which: str = "last"  # epoch of the logits
    measured: Measured = field(default_factory=Measured)
    networks: list["RunData"] = field(default_factory=list)  # of a recipe of several networks
    missing: list[str] = field(default_factory=list)

    @property
    def members(self) -> int:
        """Predictors that have scores."""
        return len({key.split(".")[1] for scores in self.scores.values() for key in scores if key[:8] == "members."})

    @property
    def shown(self) -> str | None:
        """The epoch whose scores stand first: the chosen one if it is there."""
        return self.which if self.which in self.scores else next(iter(self.scores), None)

    def score(self, name: str, which: str | None = None) -> float | None:
        """Return a number of the ensemble, or by its path; None if it is not there."""
        numbers = self.scores.get(which or self.shown or "", {})
        return numbers.get(name if "." in name else f"ensemble.{name}")

    def read(self, what: str, reader: Callable[[], T]) -> T | None:
        """Return what a reader returns; or None, after noting its error as something that is missing."""
        try:
            return reader()
        except UserError as error:
            self.missing.append(f"{what}: {_short(error, self.path)}")
        except Exception as error:  # files of other versions hold other things
            self.missing.append(f"{what}: {type(error).__name__}, {first_line(error)}")
        return None


def read_run(path: Path, which: str = "last", *, name: str | None = None, logits: bool = True) -> RunData:
    """Read a run directory.

    Args:
        path: Its folder.
        which: Epoch of the logits, and of the scores that are shown first.
        name: To show; by default the path.
        logits: Whether to read the logits; a training that keeps its report fresh has none yet.

    Raises:
        UserError: Only if there is no trace of a run.
    """
    if not any((path / trace).is_file() for trace in TRACES):
        raise UserError(
            f"{path} is not a run directory: it has no {', '.join(TRACES)}; give the --out of a `mixmo train`"
        )
    data = RunData(path, printable(name or str(path)), which=which)
    _read_recipe(data)
    run = Run(path, data.recipe or Recipe(networks=1))
    if data.recipe is not None and data.recipe.networks > 1:
        _read_networks(data, run, logits)
    else:
        _read_files(data, run, logits)
    data.finished = run.is_finished()
    _read_scores(data, run)
    data.measured = data.read("measured", lambda: read_measured(path, which)) or Measured()
    return data


def _read_recipe(data: RunData) -> None:
    data.recipe = data.read("recipe.yaml", lambda: Run.open(data.path).recipe)
    if data.recipe is not None:
        data.fields = data.recipe.to_dict()
    else:  # of another version, or damaged: what is legible
        try:
            content = read_yaml(data.path / "recipe.yaml")
            data.fields = {str(key): value for key, value in dict(content).items()}
        except (OSError, ValueError, TypeError):
            data.fields = {}


def _read_networks(data: RunData, run: Run, logits: bool) -> None:
    for place, path in enumerate(run.network_paths()):
        if not any((path / trace).is_file() for trace in TRACES):
            data.missing.append(f"network {place}: its training has not started, or its folder was removed")
            continue
        network = read_run(path, data.which, name=f"network {place}", logits=False)
        data.networks.append(network)
        data.missing += [f"network {place}: {sentence}" for sentence in network.missing]
    first = data.networks[0] if data.networks else data
    data.environment, data.classes = first.environment, first.classes
    for key in ("parameters", "multiply_adds", "seconds"):
        values = [network.summary[key] for network in data.networks if key in network.summary]
        if values and len(values) == run.recipe.networks:
            data.summary[key] = sum(values)
    if logits and run.is_finished():
        data.logits = data.read("logits", lambda: run.read_logits(data.which))


def _read_files(data: RunData, run: Run, logits: bool) -> None:
    path = data.path
    data.environment = _mapping(data, "environment.json", run.read_environment)
    unnamed = False
    if (path / "dataset.json").is_file():
        named = _mapping(data, "dataset.json", run.read_dataset).get("classes")
        data.classes = [printable(str(each)) for each in named] if isinstance(named, list) else []
    else:
        unnamed = True
    lines = data.read("metrics.jsonl", run.read_metrics)
    if lines is None:
        lines = _legible_lines(data)
    elif not lines:
        data.missing.append("metrics.jsonl: no epoch has been scored yet, so there are no curves")
    rows = [dict(flat(line, ".")) for line in lines if isinstance(line, dict)]
    rows = [row for row in rows if "epoch" in row]
    names = dict.fromkeys(name for row in rows for name in row)
    data.curves = {name: [row.get(name, math.nan) for row in rows] for name in names}
    file = path / f"logits-{data.which}.safetensors"
    if logits and is_stored(file):
        data.logits = data.read(file.name, lambda: run.read_logits(data.which))
        if unnamed:
            data.missing.append("dataset.json: the file is missing, so classes have numbers instead of names")
    elif logits:
        why = "the file is missing" if (path / "scores.json").is_file() else "the training is unfinished"
        data.missing.append(f"{file.name}: {why}, so calibration, risk, classes and disagreements are left out")


def _legible_lines(data: RunData) -> list[Any]:
    """Lines of metrics.jsonl that are JSON, whatever the others are."""
    lines, lost, file = list[Any](), 0, data.path / "metrics.jsonl"
    texts = data.read(file.name, lambda: file.read_text(encoding="utf-8", errors="replace").splitlines())
    for text in texts or ():
        try:
            lines.append(parse_json(text))
        except ValueError:
            lost += 1
    if lines:
        data.missing.append(
            f"metrics.jsonl: curves use its {len(lines)} readable lines, unverified; {lost} are damaged"
        )
    return lines


def _read_scores(data: RunData, run: Run) -> None:
    """Scores as `mixmo eval` has them: stored, else of the logits, else of the last scored epoch."""
    if not data.networks and (data.path / "scores.json").is_file():
        stored = _mapping(data, "scores.json", run.read_scores)
        data.scores = {which: dict(flat(stored[which], ".")) for which in (data.which, *WHICH) if which in stored}
        data.summary = {key: value for key, value in stored.items() if isinstance(value, int | float)}
        data.summary["best_by"] = stored.get("best_by")
    elif not data.networks:
        data.missing.append(
            "scores.json: the training is unfinished, so there are no scores of the last and the best epoch"
        )
    if not data.scores and data.logits is not None:
        report = data.read("scores", lambda: evaluate(*data.logits))  # type: ignore[misc]
        data.scores = {} if report is None else {data.which: dict(flat(report.to_dict(), "."))}
    if not data.scores and data.curves:
        test = {name[5:]: column[-1] for name, column in data.curves.items() if name.startswith("test.")}
        epoch = f"epoch {data.curves['epoch'][-1]:.0f}"
        data.scores = {epoch: {name: value for name, value in test.items() if not math.isnan(value)}}
    recipe = data.recipe
    known = recipe is not None and recipe.dataset in FACTS and recipe.start is None and not data.networks
    if recipe is not None and known and "parameters" not in data.summary:
        data.summary |= size_of(recipe)


def _mapping(data: RunData, name: str, reader: Callable[[], Any]) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one, after noting it, if the file has none."""
    content = data.read(name, reader)
    if content is not None and not isinstance(content, dict):
        data.missing.append(f"{name}: its content was not written by mixmo")
    return content if isinstance(content, dict) else {}


def _short(error: Exception, folder: Path) -> str:
    """Return an error without the folder, which the page names already."""
    return first_line(error).replace(f"{folder}/", "")
