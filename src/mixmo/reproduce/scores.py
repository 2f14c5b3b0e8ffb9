"""The scores of the tables: name, unit, the files they are read from, and their values."""

import fnmatch
import functools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from mixmo.evaluation.analysis import activity, average, columns, core_norms, encoder_norms
from mixmo.evaluation.analysis.summary import THRESHOLDS
from mixmo.evaluation.run_scores import score_runs
from mixmo.mixing.masks import MASKS
from mixmo.mixing.mixer import loss_weights
from mixmo.models import multiply_adds, parameters
from mixmo.recipes.protocols import FACTS
from mixmo.recipes.schema import Recipe
from mixmo.runs.directory import Run
from mixmo.runs.network import load_network

DRAWS = 4_096  # of a mask, to average its area over


class Unit(NamedTuple):
    name: str
    factor: float
    digits: int


UNITS = {
    "%": Unit("%", 100, 2),
    "e-2": Unit("1e-2", 100, 1),
    "1": Unit("", 1, 3),
    "M": Unit("M", 1e-6, 2),
    "G": Unit("G", 1e-9, 4),
}


class Kind(NamedTuple):
    label: str
    unit: str
    source: str  # "": the recipe alone; scores, corrupted, filters: what is kept of a run or an ensemble


KINDS = {  # families of scores, by the first word of their name
    "top1": Kind("Top1", "%", "scores"),
    "top5": Kind("Top5", "%", "scores"),
    "nllc": Kind("NLLc", "1", "scores"),
    "nll": Kind("NLL", "1", "scores"),
    "ece": Kind("ECE", "e-2", "scores"),
    "members": Kind("individual {}", "%", "scores"),
    "ratio_error": Kind("ratio-error", "1", "scores"),
    "corrupted": Kind("{}", "%", "corrupted"),
    "active": Kind("active (t_a = {})", "%", "filters"),
    "norm": Kind("l1 norm", "1", "filters"),
    "parameters": Kind("parameters", "M", ""),
    "multiply_adds": Kind("multiply-adds", "G", ""),
    "weight": Kind("w_r({})", "1", ""),
    "area": Kind("kappa = {}", "1", ""),
}


def label(score: str) -> str:
    """
    >>> label("members top1"), label("active 0.4"), label("nllc")
    ('individual Top1', 'active (t_a = 0.4)', 'NLLc')
    """
    kind, _, rest = score.partition(" ")
    return KINDS[kind].label.format(KINDS[rest].label if rest in KINDS else rest)


def unit(score: str) -> str:
    kind, _, rest = score.partition(" ")
    return KINDS[rest].unit if rest in KINDS else KINDS[kind].unit


def source(score: str) -> str:
    return KINDS[score.split()[0]].source


def files(score: str, which: str, networks: int) -> frozenset[str]:
    """The files of each finished run that a score of runs needs, where nothing derived from them is kept yet."""
    kind = source(score)
    if kind == "filters":
        return frozenset({"scores.json", "dataset.json", f"{which}.safetensors"})
    if kind == "corrupted":
        return frozenset({"scores.json", "dataset.json", f"{which}.safetensors", f"logits-{which}.safetensors"})
    if which == "last10":
        return frozenset({"scores.json", "metrics.jsonl"})
    logits = {"logits-best.safetensors", "logits-last.safetensors"} if networks > 1 else set()
    return frozenset({"scores.json", *logits})


def of_recipe(score: str, recipe: Recipe, networks: int) -> float:
    """A score that needs no training."""
    kind, _, rest = score.partition(" ")
    if kind == "weight":
        kappa = torch.tensor([float(rest), 1 - float(rest)], dtype=torch.float64)
        return loss_weights(kappa[:, None], recipe.r)[0].item()
    if kind == "area":
        return area(recipe.mask, float(rest), FACTS[recipe.dataset].size[1])
    return size_of(recipe)[kind] * networks


@functools.cache
def area(mask: str, kappa: float, side: int) -> float:
    u = torch.rand(DRAWS, MASKS[mask].uniforms(side, side), generator=torch.Generator().manual_seed(0))
    return MASKS[mask].draw(torch.full((DRAWS,), kappa), u, side, side).mean().item()


def size_of(recipe: Recipe) -> dict[str, int]:
    """Parameters and multiply-adds of a recipe's network; of a family counted without memory for its weights."""
    return _size(Recipe(**{name: getattr(recipe, name) for name in NETWORK}))


NETWORK = (  # the fields that decide it
    *("dataset", "size", "mask", "association"),
    *("model", "depth", "width", "stem", "head", "drop_path", "members", "encoders", "heads"),
)


@functools.cache
def _size(recipe: Recipe) -> dict[str, int]:
    facts = FACTS[recipe.dataset]
    seen = recipe.seen(facts.size)
    with nullcontext() if recipe.is_backbone else torch.device("meta"), torch.random.fork_rng(devices=[]):
        net = recipe.network(facts.classes, seen)
    return {"parameters": parameters(net), "multiply_adds": multiply_adds(net, seen)}


def of_epochs(score: str, run: Run) -> float:
    """A score's mean over the last ten epochs, of those that were scored."""
    means = average(columns(run))
    kind, _, rest = score.partition(" ")
    if kind == "members":
        names = fnmatch.filter(means, f"test.members.*.{rest}")
        return math.fsum(means[name] for name in names) / len(names)
    return means.get(f"test.{'diversity' if kind == 'ratio_error' else 'ensemble'}.{kind}", math.nan)


def of_scores(score: str, scores: dict[str, Any]) -> float | None:
    """A score of one epoch, from what is kept of a run or an ensemble (its `best` or `last`)."""
    kind, _, rest = score.partition(" ")
    if kind == "members":
        return math.fsum(member[rest] for member in scores["members"]) / len(scores["members"])
    if kind == "ratio_error":
        return scores["diversity"] and float(scores["diversity"]["ratio_error"])
    return float(scores["ensemble"][kind])


def of_filters(score: str, found: dict[str, Any], channel: int | None) -> float | None:
    """A share of active filters, or the norm of one filter of one encoder; None if there is no such filter."""
    kind, _, rest = score.partition(" ")
    if kind == "active":
        return float(found["active"][rest])
    norms, place = found["encoders"][int(rest)], channel or 0
    return float(norms[place]) if place < len(norms) else None


def ensemble_scores(runs: Sequence[Run]) -> dict[str, Any]:
    """The scores of several runs as one ensemble, without their paths."""
    return {key: value for key, value in score_runs(runs).to_dict().items() if key != "runs"}


def filter_scores(run: Run, which: str) -> dict[str, Any]:
    """Active filters and encoder norms of one run."""
    net = load_network(run, which)
    active = {f"{t:g}": activity(core_norms(net), t).by_layer for t in THRESHOLDS}
    return {"active": active, "encoders": encoder_norms(net).tolist()}
