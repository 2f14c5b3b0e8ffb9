"""What is done with a NaN or infinite loss, gradient or output: a record of the step, and an error."""

import json
import math
from pathlib import Path

from torch import Tensor

from mixmo.engine.optimizer import LossScaler
from mixmo.recipes.schema import Recipe
from mixmo.runs.checkpoint import State
from mixmo.utils.errors import UserError

SMALLEST_SCALE = 2.0**-24  # of the loss in fp16: 40 overflows after the first scale of 2^16


class DivergedError(UserError):
    """The loss or the outputs are infinite: the last checkpoint is worth more than the weights."""


def diverged(what: str, recipe: Recipe) -> DivergedError:
    remedy = f"train again with a lower lr (it is {recipe.lr}) or a longer warmup into another --out"
    return DivergedError(f"{what}: training diverged; {remedy}")


def with_way_on(error: DivergedError, step: int | None, on_nan: str) -> DivergedError:
    """Add what was saved: the checkpoint of a step, from which training can go on unless that was tried, or nothing."""
    untried = on_nan == "stop"
    if step is None:
        return DivergedError(f"{error}{', or with --on-nan skip' * untried}; nothing was saved")
    way_on = ", from which --resume with --on-nan skip or rollback continues" * untried
    return DivergedError(f"{error}; the checkpoint of step {step} is kept{way_on}")


def check_outputs(logits: Tensor, recipe: Recipe) -> None:
    """Raise an error if the last step, or the running statistics, made outputs infinite: the loss may not show it."""
    if not logits.isfinite().all():
        raise diverged("the network outputs NaN or infinite values", recipe)


def check_scale(scaler: LossScaler | None, step: int, recipe: Recipe) -> None:
    """Raise an error if lowering the scale of the loss in fp16 does not keep the gradients finite."""
    if scaler is not None and scaler.scale.item() < SMALLEST_SCALE:
        raise diverged(f"the gradients overflow fp16 at every scale of the loss by step {step}", recipe)


def steps_before(state: State) -> int | None:
    """Return the steps before the first one of this epoch whose loss is NaN or infinite; None if all are finite."""
    since = state.meter[3]
    return state.step - math.ceil(since) if since else None


def check_loss(state: State, first: int, steps_per_epoch: int, file: Path, recipe: Recipe) -> None:
    """Raise an error if the loss is NaN or infinite after the `first` steps, or if all of an epoch were skipped."""
    loss, _, skipped, _ = state.meter
    if not math.isfinite(loss):
        raise diverged(f"the loss is {loss} from step {first + 1} on ({file} lists its images)", recipe)
    if state.step == (state.epochs_logged + 1) * steps_per_epoch and skipped == steps_per_epoch:
        raise diverged(f"all steps of epoch {state.epochs_logged + 1} were skipped", recipe)


def nonfinite_record(first: int, state: State, seed: int, images: list[int], checkpoint: int | None) -> str:
    """Return the content of nonfinite.json: the step after the `first` ones, and what its draws depend on."""
    record = {
        "step": first + 1,
        "epoch": state.epochs_logged + 1,
        "seed": seed,
        "rollbacks": state.rollbacks,
        "checkpoint": checkpoint,
        "images": images,
    }
    return json.dumps(record, indent=2)
