"""A training that fits a wall-clock budget: how many epochs, from the pace of the first steps."""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from mixmo.engine.schedule import Schedule
from mixmo.engine.source import each_step, plan
from mixmo.engine.step import Graph
from mixmo.recipes.schema import Recipe
from mixmo.utils.errors import UserError

if TYPE_CHECKING:
    from mixmo.engine.trainer import Trainer

SECONDS = 4.0  # to measure for
MARGIN = 0.98  # of the time left is planned for: steps are not all alike


class Pace(NamedTuple):
    """Seconds that things take here."""

    spent: float  # on finding out
    step: float
    scoring: float  # an epoch, on average
    finish: float  # at the end


def measure(trainer: "Trainer") -> Pace:
    """Time some first steps and a scoring, then put everything back as it was."""
    began = time.monotonic()
    kept = {name: tensor.clone() for name, tensor in trainer.net.state_dict().items()}
    steps = trainer.schedule.steps_per_epoch
    planned = plan(trainer.recipe, len(trainer.train_split.labels), 0)
    warm = min(Graph.WARMUP + 2, steps - 1)
    marks = [] if warm else [time.monotonic()]  # an only step is timed with its warm-up
    for number, samples in enumerate(each_step(trainer.recipe, trainer.train_split, planned, 0, steps, trainer.world)):
        draws = trainer.batches.draw(samples.unique, trainer.stream.at("step", number), samples.partners, samples.pool)
        trainer.step(draws, 0.0, trainer.recipe.p)
        if number + 1 >= warm:
            trainer.read_meter()  # waits for the device
            marks.append(time.monotonic())
            # The others stop with the process that writes.
            if trainer.world.told(marks[-1] - marks[0] > SECONDS):
                break
    step = (marks[-1] - marks[0]) / (len(marks) - 1)
    scorer = trainer.scorer
    scorer.score(trainer.dataset.test)
    scoring = timed(lambda: [scorer.score(split) for split in scorer.splits.values()])
    finish = 2 * timed(scorer.all_answers) + 2 * scoring
    trainer.net.load_state_dict(kept)
    for state in trainer.optimizer.state.values():
        state["momentum_buffer"].zero_()  # as good as none: the first step makes it the gradient
    trainer.step.meter.zero_()
    trainer.state.meter = (0.0, 0.0)
    return Pace(time.monotonic() - began, step, scoring / trainer.runtime.score_every, finish)


def fitted(recipe: Recipe, schedule: Schedule, pace: Pace, seconds: float) -> Recipe:
    """The recipe with as many epochs as fit; warm-up is shortened with them, decay and p are shares of them anyway."""
    left = MARGIN * (seconds - pace.spent - pace.finish)
    each = schedule.steps_per_epoch * pace.step + pace.scoring
    epochs = int(left / each)
    if epochs < 1:
        lacking = pace.spent + pace.finish + each / MARGIN - seconds
        raise UserError(
            f"minutes leave {max(0, seconds):.0f} s after loading; an epoch takes {each:.0f} s here, after "
            f"{pace.spent:.0f} s to get going; give {math.ceil(lacking / 6) / 10:.1f} more for each network"
        )
    return recipe.replace(epochs=epochs, warmup=recipe.warmup * epochs / recipe.epochs)


def timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic() - began
