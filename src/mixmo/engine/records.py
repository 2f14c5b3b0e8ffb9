"""What a run directory records of each epoch, and of its data set."""

from collections.abc import Mapping
from typing import Any

from mixmo.data.types import Dataset
from mixmo.engine.schedule import Schedule
from mixmo.engine.scoring import Scored
from mixmo.recipes.schema import Recipe
from mixmo.runs.checkpoint import State


def epoch_record(state: State, schedule: Schedule, scored: Mapping[str, Scored], seconds: float) -> dict[str, Any]:
    """Return the line of metrics.jsonl for the epochs since the last one; scoring took `seconds`."""
    step, mixer = state.step, schedule.recipe.mixer()
    steps = step - schedule.steps_per_epoch * state.epochs_logged
    loss, accuracy = (total / steps for total in state.meter)
    return {
        "epoch": step // schedule.steps_per_epoch,
        "step": step,
        "lr": schedule.lr(step - 1),
        "p": mixer.chance(schedule.progress(step - 1)),
        "train": {"loss": loss, "top1": accuracy},
        **{name: split.report.to_dict() for name, split in scored.items()},
        "seconds": round(state.seconds, 3),
        "evaluation_seconds": round(seconds, 3),
    }


def dataset_record(dataset: Dataset, recipe: Recipe) -> dict[str, Any]:
    """Return the content of dataset.json: what the weights need to be used, and counts to notice a changed data set.

    `size` is that of what the network sees; `resize` the shorter side of the images that this is the centre of, or
    None; `images` are the counts for training and for testing.
    """
    return {
        "name": dataset.name,
        "classes": list(dataset.classes),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
        "size": list(recipe.seen(dataset.size)),
        "resize": None if recipe.size is None else min(dataset.size[1:]),
        "images": [len(dataset.train.labels), len(dataset.test.labels)],
    }
