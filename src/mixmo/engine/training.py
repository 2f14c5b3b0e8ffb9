"""From a recipe to a finished run directory."""

import dataclasses
import math
import os
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack

from mixmo import data
from mixmo.engine.distributed import lost_processes_named
from mixmo.engine.divergence import DivergedError, with_way_on
from mixmo.engine.loggers import Logger
from mixmo.engine.preflight import check_fit, check_precision, check_same, check_world
from mixmo.engine.resume import change_epochs, open_run
from mixmo.engine.runtime import Runtime
from mixmo.engine.trainer import Trainer
from mixmo.recipes.schema import Recipe
from mixmo.runs.directory import Run, is_run
from mixmo.runs.lock import claim, removed_unless_begun
from mixmo.utils import memory
from mixmo.utils.errors import check_path, check_readable
from mixmo.utils.progress import say, shown, track

ROLLBACKS = 3  # at most, in a training with on_nan = rollback
WORSE = 3  # times the NLL of a uniform prediction: no training that learned ends there
NOTHING = 0.99  # times it, at the best temperature: a network that learned anything is below
CHANCE = 1.5  # times the Top1 of a uniform prediction: above, it learned something
LESS_MEMORY = "end other programs and give the command again, with --resume, or take a smaller batch_size or width"


def train(
    recipe: Recipe,
    out: str | os.PathLike[str],
    runtime: Runtime | None = None,
    *,
    resume: bool = False,
    until: int | None = None,
    loggers: Sequence[Logger] = (),
) -> Run:
    """Train a recipe into a run directory.

    A recipe of several networks trains each into a folder 0, 1, ... of `out`, with consecutive seeds.

    Args:
        recipe: What to train.
        out: Run directory to write. It must be new, unless `resume` is set.
        runtime: Device, data folder, checkpoints, display; the defaults of `Runtime` if None.
        resume: Continue the run in `out`, if there is one, to the same result as without the interruption. Its recipe
            must be the same, up to `epochs` where the schedule allows it (see `mixmo.engine.resume.change_epochs`).
        until: Stop after this step.
        loggers: Objects with Lightning's logger interface, which get the scores of every epoch, in addition to those of
            `runtime.logger`.

    Returns:
        The run: finished, unless `until` stopped it.

    Raises:
        UserError: If the recipe does not fit the data set, the device or the run in `out`; or if training diverges.
        Stopped: If a signal (Ctrl-C, SIGTERM) stopped the training, after it was saved.
    """
    began = time.monotonic()
    out, runtime = check_path("out", out), runtime or Runtime()
    check_readable(out)
    device, world, fitted = runtime.resolve(), runtime.world(), runtime.minutes is not None
    check_world(recipe, world)
    check_precision(recipe, device)
    with ExitStack() as held:
        held.enter_context(shown(not runtime.quiet and world.writes))
        held.enter_context(memory.advised(LESS_MEMORY))
        held.enter_context(lost_processes_named(world, out))
        with world.first():
            if resume and is_run(out):  # it may lie where there are no data, and nobody can write
                run = open_run(recipe, out, resume, fitted)
                if run.is_finished() and (fitted or run.recipe.epochs == recipe.epochs):
                    say(f"{out} has ended; nothing is left to train")
                    return run
            dataset = data.load(recipe.dataset, runtime.data, device, runtime.stream, runtime.workers, recipe.val)
            check_fit(recipe, dataset)
            ours = not out.exists()
            if world.writes:
                held.enter_context(claim(out))
            if world.writes and not is_run(out):
                held.enter_context(removed_unless_begun(out, folder=ours))
            run = open_run(recipe, out, resume or not world.writes, fitted)
            stored = run.recipe
            if stored.epochs != recipe.epochs and not fitted:
                samples = len(dataset.train.labels)
                change_epochs(run, recipe.epochs, samples - recipe.held_out(samples))
                say(f"{out} was planned for {stored.epochs} epochs and is trained to {recipe.epochs}")
                run, stored = Run.open(out), recipe
            if run.is_finished():  # by another process, since the last look
                return run
        check_same(recipe, dataset, world)
        if recipe.networks == 1:
            trainer = Trainer(stored, dataset, run, runtime, device, loggers)
            if runtime.minutes is not None and trainer.state.step == 0:
                trainer.fit(60 * runtime.minutes - (time.monotonic() - began))
            while rollbacks := _rolled_back(trainer, until):
                stored = trainer.recipe
                del trainer  # its memory, before the next one takes as much
                trainer = Trainer(stored, dataset, run, runtime, device, loggers, rollbacks)
            if world.writes and run.is_finished():
                warn_if_useless(run, len(dataset.classes))
            return run
        share = None if runtime.minutes is None else runtime.minutes / recipe.networks
        for i, path in enumerate(track(run.network_paths(), "networks")):
            say(f"network {i + 1} of {recipe.networks}")
            one = recipe.replace(networks=1, seed=recipe.seed + i)
            train(one, path, dataclasses.replace(runtime, minutes=share), resume=True, until=until, loggers=loggers)
    return run


def _rolled_back(trainer: Trainer, until: int | None) -> int:
    """Train; if it diverges and a rollback is allowed, return the number of rollbacks including this one, else 0."""
    try:
        trainer.run(until)
    except DivergedError as error:
        count, on_nan = trainer.state.rollbacks + 1, trainer.runtime.on_nan
        if on_nan != "rollback" or count > ROLLBACKS:
            latest = trainer.checkpoints.latest()
            raise with_way_on(error, int(latest.name) if latest else None, on_nan) from error
        trainer.world.broadcast(None)  # the writing process has finished its checkpoint; now all can load the same
        latest = trainer.checkpoints.latest()
        back = f"the checkpoint of step {int(latest.name)}" if latest else "the start"
        say(
            f"rollback {count} of {ROLLBACKS}: {str(error).partition(' (')[0]}; continuing from {back} with other draws"
        )
        return count
    return 0


def warn_if_useless(run: Run, classes: int) -> None:
    """Warn if a finished network predicts no better than the uniform distribution, or with a far higher NLL."""
    scores, uniform = run.read_metrics()[-1]["test"]["ensemble"], math.log(classes)
    if scores["nll"] > WORSE * uniform:
        problem, name, other = "training diverged", "NLL", "a lower"
    elif scores["nllc"] > NOTHING * uniform and scores["top1"] < CHANCE / classes:
        problem, name, other = "the network has learned nothing", "NLLc", "another"
    else:
        return
    top1, score = f"Top1 {100 * scores['top1']:.2f} %", f"{name} {scores[name.lower()]:.4g}"
    compared = f"the last epoch has {top1} and {score}, a uniform prediction {100 / classes:.2f} % and {uniform:.4g}"
    remedy = f"train again with {other} --lr (in the recipe it is {run.recipe.lr:g}) or more epochs"
    warnings.warn(f"{problem}: {compared}; {remedy}", stacklevel=3)
