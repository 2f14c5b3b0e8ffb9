"""Train the missing runs: here, one after the other, or several at a time by workers."""

import json
import math
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from mixmo.engine import Runtime, train
from mixmo.recipes.schema import Recipe
from mixmo.reproduce.cost import h200, run_seconds
from mixmo.reproduce.store import Store
from mixmo.utils.errors import UserError
from mixmo.utils.progress import clock
from mixmo.utils.signals import Stopped, terminated_as_interrupted
from mixmo.utils.text import printable_lines

Failures = dict[Recipe, str]
EVERY = 30.0  # seconds between two lines of progress
SAVING = 300.0  # seconds that interrupted runs have to save


def say(text: str) -> None:
    """Print progress to standard error; standard output is for tables."""
    print(printable_lines(text), file=sys.stderr, flush=True)


def note_failure(recipe: Recipe, name: str, reason: str, failures: Failures) -> None:
    """Print that a run failed, with a reason that is new, and add it to the failures."""
    say(f"{name} failed" + (" for the same reason" if reason in failures.values() else f": {reason}"))
    failures[recipe] = reason


def epochs_logged(folder: Path) -> int:
    """Return the last epoch in a run's metrics.jsonl, whose last line may be half written; 0 without one."""
    try:
        *_, last, _ = (folder / "metrics.jsonl").read_bytes().split(b"\n")
        return int(json.loads(last)["epoch"])
    except (OSError, ValueError, LookupError, TypeError):  # none yet, or damaged, which resuming says
        return 0


def progress(recipes: Sequence[Recipe], pending: Sequence[Recipe], folders: dict[Recipe, Path]) -> str:
    """Return one line with the epochs logged by every run under way."""
    begun = [recipe for recipe in pending if (folders[recipe] / "environment.json").exists()]
    under_way = [f"{folders[r].name} {epochs_logged(folders[r])}/{r.epochs}" for r in begun]
    done = len(recipes) - len(pending)
    waiting = len(pending) - len(under_way)
    return f"{done} of {len(recipes)} ended, {waiting} not begun; epochs: {', '.join(under_way) or '-'}"


class Remaining:
    """Time left of a plan, from the share of its work done since it began; relative costs are those of an H200."""

    def __init__(self, recipes: Sequence[Recipe], store: Store) -> None:
        self.folders = {recipe: store.folder(recipe) for recipe in recipes}
        self.work = {recipe: run_seconds(recipe, h200()) for recipe in recipes}
        self.began, self.before = time.monotonic(), self.done(recipes)

    def done(self, recipes: Collection[Recipe]) -> float:
        return sum(self.work[recipe] * epochs_logged(self.folders[recipe]) / recipe.epochs for recipe in recipes)

    def text(self, failures: Collection[Recipe]) -> str:
        """Return the suffix of a progress line; empty before the first epoch."""
        kept = [recipe for recipe in self.work if recipe not in failures]
        made = self.done(self.work) - self.before
        if made <= 0:
            return ""
        left = sum(self.work[recipe] for recipe in kept) - self.done(kept)
        return f"; all: {clock(left * (time.monotonic() - self.began) / made)} left"


def run_here(recipes: Sequence[Recipe], store: Store, runtime: Runtime) -> Failures:
    """Train or resume each run in turn; a run that fails does not stop the others, Ctrl-C does."""
    if runtime.world().size > 1:  # they would claim the runs from each other
        raise UserError("a plan is run by one process; start it without torchrun, and share it out with --ray auto")
    failures: Failures = {}
    remaining = Remaining(recipes, store)
    for number, recipe in enumerate(recipes, 1):
        folder = store.folder(recipe)
        begun = " (resumed)" if store.begun(recipe) else ""
        say(f"run {number} of {len(recipes)}: {folder.name}{begun}{remaining.text(failures)}")
        try:
            train(recipe, folder, runtime, resume=True)
        except UserError as error:
            note_failure(recipe, folder.name, str(error), failures)
        except Stopped as stopped:
            before = f"{number - 1 - len(failures)} of {len(recipes)} runs done before it"
            how = str(stopped).partition(";")[0]
            raise Stopped(f"{folder.name} {how}, {before}; the same command continues") from stopped
    return failures


class Workers(Protocol):
    """What trains runs several at a time: processes of this machine, or tasks of Ray."""

    def start(self, recipe: Recipe, folder: Path) -> Any: ...
    def ended(self, workers: Sequence[Any], timeout: float) -> Sequence[Any]: ...
    def outcome(self, worker: Any, folder: Path) -> str | None: ...  # why it failed; "" if not, None to resume it
    def stop(self, workers: Sequence[Any]) -> None: ...  # after a checkpoint


def run_by_workers(
    recipes: Sequence[Recipe], store: Store, workers: Workers, jobs: int | None = None, minutes: float | None = None
) -> Failures:
    """Train `jobs` runs at a time, by default all, for at most `minutes`; return those that cannot be trained.

    What was begun goes first. After the time is over, and on Ctrl-C, runs under way save a checkpoint.
    """
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    waiting = sorted(recipes, key=lambda recipe: not store.begun(recipe))
    folders = {recipe: store.folder(recipe).resolve() for recipe in recipes}
    running: dict[Any, Recipe] = {}
    failures: Failures = {}
    remaining, shown = Remaining(recipes, store), -math.inf

    def done() -> str:
        return f"{len(recipes) - len(waiting) - len(running) - len(failures)} of {len(recipes)}"

    def collect(timeout: float) -> None:
        for worker in workers.ended(list(running), timeout):
            recipe = running.pop(worker)
            folder = folders[recipe]
            reason = workers.outcome(worker, folder)
            if reason is None:
                waiting.append(recipe)
            elif reason:
                note_failure(recipe, folder.name, reason, failures)
            else:
                say(f"{folder.name} finished; {done()} done")

    with terminated_as_interrupted():  # Ray's own handler would end all runs unsaved
        try:
            while (waiting or running) and time.monotonic() < deadline:
                while waiting and len(running) < (jobs or len(recipes)):
                    recipe = waiting.pop(0)
                    running[workers.start(recipe, folders[recipe])] = recipe
                collect(timeout=min(1.0, max(0.0, deadline - time.monotonic())))
                if time.monotonic() - shown > EVERY:
                    shown = time.monotonic()
                    say(progress(recipes, [*running.values(), *waiting], folders) + remaining.text(failures))
        except KeyboardInterrupt:
            raise Stopped(f"stopped with {done()} runs done; the same command continues") from None
        finally:
            if running:
                workers.stop(list(running))
    if running:
        collect(timeout=0.0)
    if waiting:
        left = f"{len(waiting)} of {len(recipes)} runs are left"
        say(f"{minutes:g} minutes are over; {left}: the same command continues them")
    return failures
