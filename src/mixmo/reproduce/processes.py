"""Train the missing runs in several processes that share this machine's GPU, for a limited time.

A plan that takes days is worked off in sittings: what was begun goes first, and when the minutes are over every run
saves a checkpoint. The next call, here or on another machine that has the output folder, goes on from there.
"""

import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import torch

from mixmo.engine import Runtime, train
from mixmo.recipes.schema import Recipe
from mixmo.reproduce.execute import EVERY, SAVING, Failures, Remaining, failed, progress, say
from mixmo.reproduce.store import Store
from mixmo.utils.errors import UserError, first_line
from mixmo.utils.signals import Stopped

STOPPED = "stopped"


class Worker(NamedTuple):
    """One training in a process of its own, and where it reports how it ended."""

    process: BaseProcess
    report: Connection

    def outcome(self) -> str:
        """Return an empty string if it finished, STOPPED after a signal, else why it failed."""
        if self.report.poll():
            return str(self.report.recv())
        return f"its process ended with status {self.process.exitcode}"


def run_in_processes(
    recipes: Sequence[Recipe], store: Store, runtime: Runtime, jobs: int, minutes: float | None = None
) -> Failures:
    """Train `jobs` runs at a time, for at most `minutes`; return those that cannot be trained.

    After the time is over, and on Ctrl-C, runs under way save a checkpoint.
    """
    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    waiting = sorted(recipes, key=lambda recipe: not store.begun(recipe))
    folders = {recipe: store.folder(recipe).resolve() for recipe in recipes}
    running: dict[Recipe, Worker] = {}
    failures: Failures = {}
    remaining, shown = Remaining(recipes, store), time.monotonic()

    def collect() -> None:
        for recipe, worker in list(running.items()):
            if worker.process.exitcode is None:
                continue
            del running[recipe]
            if outcome := worker.outcome():
                if outcome != STOPPED:
                    say(failed(folders[recipe].name, outcome, failures))
                    failures[recipe] = outcome
            else:
                done = sum(store.find(each) is not None for each in recipes)
                say(f"{folders[recipe].name} finished; {done} of {len(recipes)} done")

    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < jobs:
                recipe = waiting.pop(0)
                running[recipe] = _start(recipe, folders[recipe], runtime)
            sentinels = [worker.process.sentinel for worker in running.values()]
            multiprocessing.connection.wait(sentinels, timeout=min(1.0, max(0.0, deadline - time.monotonic())))
            collect()
            if time.monotonic() - shown > EVERY:
                shown = time.monotonic()
                say(progress(recipes, [*running, *waiting], folders) + remaining.text(failures))
        stopped = list(running)
        _stop(running)
        collect()
    except KeyboardInterrupt:
        _stop(running)
        raise Stopped("stopped; the same command continues") from None
    left = len(waiting) + len([recipe for recipe in stopped if store.find(recipe) is None])
    if left:
        say(f"{minutes:g} minutes are over; {left} of {len(recipes)} runs are left: the same command continues them")
    return failures


def _start(recipe: Recipe, folder: Path, runtime: Runtime) -> Worker:
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_train, args=(recipe, folder, runtime, torch.get_num_threads(), theirs))
    process.start()
    theirs.close()
    return Worker(process, ours)


def _train(recipe: Recipe, folder: Path, runtime: Runtime, threads: int, report: Connection) -> None:
    torch.set_num_threads(threads)  # their number decides the last bits on a CPU
    try:
        train(recipe, folder, runtime, resume=True)
        report.send("")
    except (Stopped, KeyboardInterrupt):
        report.send(STOPPED)
    except UserError as error:
        report.send(str(error))
    except BaseException as error:
        report.send(first_line(error))
        raise


def _stop(running: dict[Recipe, Worker]) -> None:
    """Ask the runs under way to save and end; end those that do not within SAVING seconds."""
    for worker in running.values():
        worker.process.terminate()
    until = time.monotonic() + SAVING
    for worker in running.values():
        worker.process.join(max(0.0, until - time.monotonic()))
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()
