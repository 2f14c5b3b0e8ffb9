"""From a recipe to a finished run directory."""

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from mixmo import data
from mixmo.engine.loggers import Logger
from mixmo.engine.preflight import check_data, check_fit, check_logged, check_world, open_or_create, singles
from mixmo.engine.runtime import Runtime
from mixmo.engine.trainer import Trainer
from mixmo.recipes.schema import Recipe
from mixmo.runs.directory import Run, is_run
from mixmo.runs.lock import claim, removed_unless_begun
from mixmo.utils import memory
from mixmo.utils.errors import check_path
from mixmo.utils.progress import shown, track

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
    """Train a recipe into the folder `out`, or up to step `until`. With `resume`, continue what is there.

    `loggers` are told of every scored epoch: anything with Lightning's logger interface, beside `runtime.logger`.
    Several networks are runs of their own in folders 0, 1, ... of `out`, with seeds that follow each other.
    """
    began = time.monotonic()
    out, runtime = check_path("out", out), runtime or Runtime()
    device, world = runtime.resolve(), runtime.world()
    check_world(recipe, world)
    with ExitStack() as held:
        held.enter_context(shown(not runtime.quiet and world.writes))
        held.enter_context(memory.told(LESS_MEMORY))
        with world.first():
            fitted = runtime.minutes is not None
            # A finished run may lie where no data are, and nobody can write.
            if resume and is_run(out) and (run := open_or_create(recipe, out, resume, fitted)).is_finished():
                if not runtime.quiet and world.writes:
                    print(f"{out} has ended; nothing is left to train", file=sys.stderr)
                return run
            dataset = data.load(recipe.dataset, runtime.data, device, runtime.stream, runtime.workers, recipe.val)
            check_fit(recipe, dataset)
            ours = not out.exists()
            if world.writes:
                held.enter_context(claim(out))
            if world.writes and not is_run(out):
                held.enter_context(removed_unless_begun(out, folder=ours))
            run = open_or_create(recipe, out, resume or not world.writes, fitted)
            if run.is_finished():  # since we looked
                return run
        if recipe.networks == 1:
            trainer = Trainer(run.recipe, dataset, run, runtime, device, loggers)
            if trainer.state.step:
                check_data(run, recipe, dataset)
            check_logged(run, trainer.state, trainer.schedule.steps)
            if runtime.minutes is not None and trainer.state.step == 0:
                trainer.fit(60 * runtime.minutes - (time.monotonic() - began))
            trainer.run(until)
            return run
        share = None if runtime.minutes is None else runtime.minutes / recipe.networks
        networks = list(zip(run.network_paths(), singles(recipe), strict=True))
        for i, (path, one) in enumerate(track(networks, "networks")):
            if not runtime.quiet and world.writes:
                print(f"network {i + 1} of {recipe.networks}", file=sys.stderr)
            train(one, path, dataclasses.replace(runtime, minutes=share), resume=True, until=until, loggers=loggers)
    return run
