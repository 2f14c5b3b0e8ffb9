"""What recipes reached in the runs of results/, which are not part of the installed package."""

import functools
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

FILE = files("mixmo.recipes") / "reached.yaml"


class Reached(NamedTuple):
    """Scores of one recipe with some settings, as means over seeds, at the best epoch by test accuracy."""

    recipe: str
    settings: dict[str, Any]  # fields in which the runs differ from the named recipe
    seeds: list[int]
    top1: float  # percent
    nllc: float
    minutes: float  # of training steps
    device: str


@functools.cache
def reached() -> tuple[Reached, ...]:
    return tuple(Reached(**entry) for entry in yaml.safe_load(FILE.read_text(encoding="utf-8")))
