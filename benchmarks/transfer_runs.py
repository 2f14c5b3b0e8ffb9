"""What the tables of transfer share: training their runs in stages, and what is kept of a run."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mixmo.engine import Runtime
from mixmo.evaluation.run_scores import score_runs
from mixmo.recipes import Recipe
from mixmo.recipes.protocols import FACTS, Facts
from mixmo.reproduce.execute import run_by_workers
from mixmo.reproduce.processes import Processes
from mixmo.reproduce.store import Store
from mixmo.runs.directory import Run
from mixmo.utils.errors import UserError

FILES = ("start", "teacher", "weights")  # fields of a recipe whose folders are those of one machine
FACTS |= {
    "cifar100-first": Facts(25_000, 5_000, (3, 32, 32), 50),
    "cifar100-rest": Facts(25_000, 5_000, (3, 32, 32), 50),
    "cifar100-rest-100": Facts(5_000, 5_000, (3, 32, 32), 50),
    "cifar100-rest-20": Facts(1_000, 5_000, (3, 32, 32), 50),
    "cifar10-100": Facts(1_000, 10_000, (3, 32, 32), 10),
    "tiny-imagenet-32": Facts(25_000, 2_000, (3, 32, 32), 200),
}


def train_all(
    stages: Sequence[Sequence[Recipe]], store: Store, runtime: Runtime, jobs: int, minutes: float | None
) -> None:
    """Train the runs that are missing, for so many minutes; a stage needs the ones before it."""
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    for recipes in stages:
        lacking = [recipe for recipe in recipes if finished(store, recipe) is None]
        left = None if deadline is None else max(0.0, (deadline - time.monotonic()) / 60)
        failed = run_by_workers(lacking, store, Processes(runtime), jobs, left) if lacking else {}
        if failed:
            raise UserError(f"{len(failed)} runs failed; the first: {next(iter(failed.values()))}")
        if any(finished(store, recipe) is None for recipe in lacking):
            return  # the time is over


def finished(store: Store, recipe: Recipe) -> Run | None:
    """Return the run of a recipe, also one of several networks, if it is finished."""
    run = Run(store.folder(recipe), recipe)
    return run if run.is_finished() else None


def record(run: Run) -> dict[str, Any]:
    """Return what to keep of a run: its recipe, environment, scores, and the curve of its last network."""
    usual, networks, scores = Recipe().to_dict(), run.open_networks(), score_runs([run]).to_dict()
    curve = {
        line["epoch"]: {
            split: {name: round(line[split]["ensemble"][name], 5) for name in ("top1", "nllc", "ece")}
            for split in ("validation", "test")
            if split in line
        }
        for line in networks[-1].read_metrics()
    }
    environment = networks[-1].read_environment()
    recipe = {name: value for name, value in run.recipe.to_dict().items() if value != usual[name]}
    return {
        "recipe": recipe | {name: Path(recipe[name]).name for name in FILES if recipe.get(name)},
        "environment": {name: environment[name] for name in ("torch", "device_name", "commit")},
        "scores": {which: scores[which] for which in ("last", "best") if which in scores},
        "seconds": round(sum(network.read_scores()["seconds"] for network in networks), 1),
        "curve": curve,
    }
