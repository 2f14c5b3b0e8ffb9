"""A run directory holds everything about one training run.

recipe.yaml          the recipe; `--config` reads it
environment.json     versions, device, commit, options
dataset.json         class names, normalisation and image size: how to use the weights
metrics.jsonl        one line per scored epoch
nonfinite.json       first step with a NaN or infinite loss, if there was one
checkpoints/         for --resume
last.safetensors     final weights;  best.safetensors: weights of the best epoch
logits-last.safetensors, logits-best.safetensors    test logits (heads, N, K) of every head, and the labels
scores.json          scores of the last and the best epoch; written last
SHA256SUMS           checksums of the files of a finished run, verified when a file is read
report.html          what there is to look at (`mixmo report`)
.lock                held by the process that trains
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import yaml

from mixmo.metrics.logits import LabelledLogits
from mixmo.recipes.schema import Recipe
from mixmo.runs.contents import is_dataset, is_logits, is_scores
from mixmo.runs.metrics_log import append_line, read_log
from mixmo.storage import checksums
from mixmo.storage.files import atomic_write, is_leftover
from mixmo.storage.plain_json import parse_json
from mixmo.storage.plain_yaml import read_yaml
from mixmo.storage.weights import AGAIN, UNFINISHED, load_tensors
from mixmo.utils.errors import UserError

WHICH = ("last", "best")
LOCK = ".lock"
CHECKED = ("recipe.yaml", "*.json", "metrics.jsonl", "best*.safetensors", "last*.safetensors", "logits-*.safetensors")


def is_run(path: Path | str) -> bool:
    """Return whether a folder is a run directory: whether it has a recipe.yaml."""
    return (Path(path) / "recipe.yaml").is_file()


def make_folder(path: Path) -> None:
    """Create the folder of a run; one with other files raises an error, so that nothing is overwritten."""
    try:
        taken = path.exists() and (not path.is_dir() or not all(map(_is_leftover, path.iterdir())))
        if taken and not is_run(path):
            raise UserError(f"{path} exists already and is not a run directory; give another --out")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be made ({error.strerror or error}); give another --out") from error


def _is_leftover(path: Path) -> bool:
    """Whether a process that was killed at its start left this file."""
    return path.name == LOCK or is_leftover(path)


class Run:
    """A run directory: its folder `path`, its `recipe`, and methods that read and write its other files.

    A method that reads a file raises a UserError if it is missing or damaged. JSON files are read once and kept.
    """

    def __init__(self, path: Path | str, recipe: Recipe) -> None:
        self.path, self.recipe = Path(path), recipe
        self._json: dict[str, dict[str, Any]] = {}  # JSON files that were read

    @classmethod
    def create(cls, path: Path | str, recipe: Recipe) -> "Run":
        """Create a run directory with its recipe.yaml.

        Raises:
            UserError: If the folder has files: nothing is overwritten.
        """
        run = cls(path, recipe)
        make_folder(run.path)
        if is_run(run.path):
            raise UserError(f"{run.path} exists already; give --resume to continue it, or another --out")
        run.write_recipe(recipe)
        return run

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """Open the run directory that `mixmo train` or `Run.create` wrote: read and validate its recipe."""
        path = Path(path)
        if not is_run(path):
            reason = "it has no recipe.yaml; give the --out of a `mixmo train`"
            if is_run(path.parent):
                reason = "that network has not begun to train, or was removed; give the folders beside it"
            raise UserError(f"{path} is not a run directory: {reason}")
        return cls(path, _read_recipe(path / "recipe.yaml"))

    @classmethod
    def open_each(cls, paths: Iterable[Path | str]) -> list["Run"]:
        """Open the runs of all networks: a recipe of several networks has a run for each."""
        return [network for path in paths for network in cls.open(path).open_networks()]

    def network_paths(self) -> list[Path]:
        """Return the folders of its networks: its own, or 0, 1, ... of a recipe of several networks."""
        networks = self.recipe.networks
        return [self.path] if networks == 1 else [self.path / str(i) for i in range(networks)]

    def open_networks(self) -> list["Run"]:
        """Return the run of each network: this one, or those in the folders of a recipe of several networks."""
        return [self] if self.recipe.networks == 1 else [Run.open(path) for path in self.network_paths()]

    def is_finished(self) -> bool:
        """Return whether all networks are trained: whether their scores.json exist."""
        return all((path / "scores.json").is_file() for path in self.network_paths())

    def read_scores(self) -> dict[str, Any]:
        """Return scores.json: parameters, multiply-adds, best epoch, scores of the last and the best epoch."""
        scores = self._read_json("scores.json")
        if not is_scores(scores, WHICH):
            raise UserError(f"{self.path / 'scores.json'} does not hold scores of the last and the best epoch; {AGAIN}")
        return scores

    def read_dataset(self) -> dict[str, Any]:
        """Return dataset.json: name, classes, mean, std and the size (C, H, W) of the network's input."""
        dataset = self._read_json("dataset.json")
        if not is_dataset(dataset):
            raise UserError(f"{self.path / 'dataset.json'} does not describe a data set; {AGAIN}")
        return dataset

    def read_environment(self) -> dict[str, Any]:
        """Return environment.json: versions, device, commit, options."""
        environment = self._read_json("environment.json")
        if not isinstance(environment, dict):
            raise UserError(f"{self.path / 'environment.json'} does not describe versions and device; {AGAIN}")
        return environment

    def read_metrics(self, until: int | None = None) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl, one dict per scored epoch; with `until`, up to that epoch."""
        lines = read_log(self.path / "metrics.jsonl", (self.path / "scores.json").is_file())
        return [line for line in lines if until is None or line["epoch"] <= until]

    def read_logits(self, which: str = "last") -> LabelledLogits:
        """Return the test logits (heads, N, K) of every head, of all networks, and the labels (N,).

        Args:
            which: "last" or "best" epoch.
        """
        files = [path / f"logits-{which}.safetensors" for path in self.network_paths()]
        parts = [load_tensors(file) for file in files]
        for file, part in zip(files, parts, strict=True):
            if not is_logits(part):
                raise UserError(f"{file} does not hold logits and labels; {AGAIN}")
        labels_N = parts[0]["labels"]
        if not all(torch.equal(part["labels"], labels_N) for part in parts):
            raise UserError(f"the networks of {self.path} were tested on different data; evaluate them one by one")
        return LabelledLogits(torch.cat([part["logits"] for part in parts]), labels_N)

    def write_recipe(self, recipe: Recipe) -> None:
        self.write("recipe.yaml", yaml.safe_dump(recipe.to_dict(), sort_keys=False))
        self.recipe = recipe

    def write(self, name: str, text: str) -> None:
        """Write a file atomically: an earlier one stays until the new one is on the disk."""
        with atomic_write(self.path / name) as path:
            path.write_bytes(text.encode())
        self._json.pop(name, None)

    def add_metrics(self, line: dict[str, Any]) -> None:
        """Append the line of an epoch to metrics.jsonl."""
        append_line(self.path / "metrics.jsonl", line)

    def finish(self, scores: dict[str, Any]) -> None:
        """Write SHA256SUMS and then scores.json, which marks the run as finished."""
        with atomic_write(self.path / "scores.json") as temporary:
            temporary.write_text(json.dumps(scores, indent=2))
            files = [path for pattern in CHECKED for path in sorted(self.path.glob(pattern))]
            self.write(
                checksums.NAME, checksums.format_sums({**{file.name: file for file in files}, "scores.json": temporary})
            )
        self._json.pop("scores.json", None)

    def _read_json(self, name: str) -> dict[str, Any]:
        if name not in self._json:
            path = self.path / name
            if not path.exists() and not self.is_finished():
                raise UserError(f"{path} is missing: {UNFINISHED}")
            try:
                found = parse_json(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise UserError(f"{path} cannot be read ({getattr(error, 'strerror', error)}); {AGAIN}") from error
            checksums.verify(path)
            self._json[name] = found
        return self._json[name]


def _read_recipe(path: Path) -> Recipe:
    try:
        fields, text = read_yaml(path), path.read_text(encoding="utf-8")
        if not isinstance(fields, dict) or not text.endswith("\n"):  # cut short, missing fields would be the defaults
            raise UserError("it is not complete")
        recipe = Recipe.from_dict(fields)
    except (ValueError, TypeError) as error:
        plugin = "--plugin FILE.py, or in Python by importing that file first (docs/guides/extend.md)"
        remedy = f"restore it, or register the components that it names by {plugin}"
        raise UserError(f"{path} cannot be read as a recipe ({' '.join(str(error).split())}); {remedy}") from error
    checksums.verify(path)
    return recipe
