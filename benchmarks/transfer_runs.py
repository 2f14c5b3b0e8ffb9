"""What the tables of transfer share: training their runs in stages, and what is kept of a run."""

import time
from collections.abc import Sequence
from typing import Any

from mixmo.engine import Runtime
from mixmo.recipes import Recipe
from mixmo.recipes.protocols import FACTS, Facts
from mixmo.reproduce.execute import run_by_workers
from mixmo.reproduce.processes import Processes
from mixmo.reproduce.store import Store
from mixmo.runs.directory import Run
from mixmo.utils.errors import UserError

FACTS |= {
    "cifar100-first": Facts(25_000, 5_000, (3, 32, 32), 50),
    "cifar100-rest-100": Facts(5_000, 5_000, (3, 32, 32), 50),
    "cifar100-rest-20": Facts(1_000, 5_000, (3, 32, 32), 50),
    "tiny-imagenet-32": Facts(25_000, 2_000, (3, 32, 32), 200),
}


def train_all(
    stages: Sequence[Sequence[Recipe]], store: Store, runtime: Runtime, jobs: int, minutes: float | None
) -> None:
    """Train the runs that are missing, for so many minutes; a stage needs the ones before it."""
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    for recipes in stages:
        lacking = [recipe for recipe in recipes if store.find(recipe) is None]
        left = None if deadline is None else max(0.0, (deadline - time.monotonic()) / 60)
        failed = run_by_workers(lacking, store, Processes(runtime), jobs, left) if lacking else {}
        if failed:
            raise UserError(f"{len(failed)} runs failed; the first: {next(iter(failed.values()))}")
        if any(store.find(recipe) is None for recipe in lacking):
            return  # the time is over


def record(run: Run) -> dict[str, Any]:
    """Return what to keep of a run: its recipe, environment, last scores and the curve."""
    usual, scores = Recipe().to_dict(), run.read_scores()
    curve = {
        line["epoch"]: {
            split: {name: round(line[split]["ensemble"][name], 5) for name in ("top1", "nllc", "ece")}
            for split in ("validation", "test")
            if split in line
        }
        for line in run.read_metrics()
    }
    return {
        "recipe": {name: value for name, value in run.recipe.to_dict().items() if value != usual[name]},
        "environment": {name: run.read_environment()[name] for name in ("torch", "device_name", "commit")},
        "scores": {which: scores[which] for which in ("last", "best") if which in scores},
        "seconds": round(scores["seconds"], 1),
        "curve": curve,
    }
