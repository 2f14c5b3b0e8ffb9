"""What a run directory records of its data set, of each epoch and of the finished training."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mixmo.data.types import Dataset, Split
from mixmo.engine.runtime import Runtime
from mixmo.engine.schedule import Schedule
from mixmo.engine.scoring import Scored, Scorer
from mixmo.metrics.report import evaluate
from mixmo.recipes.schema import Recipe
from mixmo.runs.checkpoint import State
from mixmo.runs.directory import Run
from mixmo.storage.weights import save_tensors, to_bfloat16


def epoch_record(state: State, schedule: Schedule, scored: Mapping[str, Scored], seconds: float) -> dict[str, Any]:
    """Return the line of metrics.jsonl for the epochs since the last one; scoring took `seconds`."""
    step, mixer = state.step, schedule.recipe.mixer()
    steps = step - schedule.steps_per_epoch * state.epochs_logged
    *sums, skipped, _ = state.meter
    loss, accuracy = (total / (steps - skipped) for total in sums)
    return {
        "epoch": step // schedule.steps_per_epoch,
        "step": step,
        "lr": schedule.lr(step - 1),
        "p": mixer.chance(schedule.progress(step - 1)),
        "train": {"loss": loss, "top1": accuracy},
        **({"skipped": math.ceil(skipped)} if skipped else {}),
        **{name: split.report.to_dict() for name, split in scored.items()},
        "seconds": round(state.seconds, 3),
        "evaluation_seconds": round(seconds, 3),
    }


def dataset_record(dataset: Dataset, recipe: Recipe) -> dict[str, Any]:
    """Return the content of dataset.json: what the weights need to be used, and counts to notice a changed data set."""
    return {
        "name": dataset.name,
        "classes": list(dataset.classes),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
        "size": list(recipe.seen(dataset.size)),  # of what the network sees
        # The shorter side before the central crop.
        "resize": None if recipe.size is None else max(recipe.size, min(dataset.size[1:])),
        "images": [len(dataset.train.labels), len(dataset.test.labels)],
        "pixels": [_pixel_sum(split) for split in (dataset.train, dataset.test)],
    }


def _pixel_sum(split: Split) -> int | None:
    """Return the sum of all pixels, which nearly every change of an image changes; None if they are streamed."""
    return int(split.images.sum()) if isinstance(split.images, Tensor) else None


def write_results(
    run: Run,
    scorer: Scorer,
    best: dict[str, Tensor] | None,
    scored: Mapping[str, Scored] | None,
    summary: dict[str, Any],
    runtime: Runtime,
) -> None:
    """Predict in float32 with the last and the `best` weights, if these are others; score the test set; write all.

    What is in `scored` is used again if it was predicted in float32 with the weights as they are stored.
    """
    last, scores = {name: tensor.clone() for name, tensor in scorer.net.state_dict().items()}, dict(summary)
    for which, weights in (("best", last if best is None else best), ("last", last)):
        if which == "best" or best is not None:
            stored = to_bfloat16(weights) if runtime.compact else weights
            scorer.net.load_state_dict(stored)
            same = weights is last and scorer.recipe.precision == "fp32" and not runtime.compact
            tensors = scorer.stored(scored if same else None)
            logits, labels = tensors["logits"].cpu(), tensors["labels"].cpu()  # scored there, as from the files
            known = scored["test"] if scored else None
            report = known.report if known and known.logits is logits else evaluate(logits, labels)
        scores[which] = report.to_dict()
        if scorer.world.writes:
            save_tensors(tensors, run.path / f"logits-{which}.safetensors")
            save_tensors(stored, run.path / f"{which}.safetensors", runtime.shard_mb)
    if scorer.world.writes:
        run.finish(scores)
