"""Fit a training to a wall-clock budget: choose the number of epochs from the pace of the first steps."""

import math
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from mixmo.engine.batch import Draws
from mixmo.engine.schedule import Schedule
from mixmo.engine.scoring import Scorer
from mixmo.engine.step import Graph, Step
from mixmo.recipes.schema import Recipe
from mixmo.utils.errors import UserError

SECONDS = 4.0  # to measure for
MARGIN = 0.98  # share of the remaining time that is planned for: steps vary


class Pace(NamedTuple):
    spent: float  # on measuring
    step: float
    scoring: float  # per epoch
    finish: float  # at the end


def measure(step: Step, draws: Iterable[Draws], steps: int, scorer: Scorer, wait: Callable[[], None]) -> Pace:
    """Time some of the `steps` of an epoch, which `wait` waits for, and a scoring; restore weights, momentum, meter."""
    began = time.monotonic()
    kept = {name: tensor.clone() for name, tensor in step.net.state_dict().items()}
    warm = min(Graph.WARMUP + 2, steps - 1)
    marks = [] if warm else [time.monotonic()]  # a single step is timed with its warm-up
    for number, drawn in enumerate(draws, 1):
        step(drawn, 0.0, scorer.recipe.p)
        if number >= warm:
            wait()
            marks.append(time.monotonic())
            if scorer.world.broadcast(marks[-1] - marks[0] > SECONDS):  # all processes stop with the writing one
                break
    scorer.score(scorer.dataset.test)
    scoring = seconds_of(lambda: [scorer.score(split) for split in scorer.splits.values()])
    finish = 2 * seconds_of(scorer.stored) + 2 * scoring
    step.net.load_state_dict(kept)
    for state in step.optimizer.state.values():
        for moment in state.values():  # zeros are equivalent to none: the first step makes the momentum the gradient
            moment.zero_()
    step.maxima.load({})
    step.meter.zero_()
    return Pace(time.monotonic() - began, (marks[-1] - marks[0]) / (len(marks) - 1), scoring, finish)


def fit_epochs(recipe: Recipe, schedule: Schedule, pace: Pace, seconds: float) -> Recipe:
    """Return the recipe with as many epochs as fit, and a warm-up shortened alike; decay and p are shares of them."""
    left = MARGIN * (seconds - pace.spent - pace.finish)
    each = schedule.steps_per_epoch * pace.step + pace.scoring
    epochs = int(left / each)
    if epochs < 1:
        needed = pace.spent + pace.finish + each / MARGIN
        minutes = math.ceil((needed - seconds) / 6) / 10
        raise UserError(
            f"too few minutes: {max(0, seconds):.0f} s are left after loading, and measuring the pace, one epoch and "
            f"the final scores take {needed:.0f} s here; give {minutes:.1f} minutes more per network"
        )
    return recipe.replace(epochs=epochs, warmup=recipe.warmup * epochs / recipe.epochs)


def seconds_of(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic() - began
