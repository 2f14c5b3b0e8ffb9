"""Train the missing runs through Ray: on all GPUs of a server, or of the machines of a cluster.

Every run is one task. A run whose worker or machine dies is queued again and resumes from its last checkpoint, so all
machines must see the same output folder (and the data) under the same path.
"""

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mixmo.engine import Runtime, train
from mixmo.recipes.schema import Recipe
from mixmo.reproduce.execute import EVERY, SAVING, Failures, Remaining, epochs_logged, failed, progress, say
from mixmo.reproduce.store import Store
from mixmo.utils.errors import UserError, first_line
from mixmo.utils.signals import Stopped, terminated_as_interrupted

DEATHS = 3  # of workers in a row, without an epoch in between, before a run is given up
Deaths = dict[Path, tuple[int, int]]  # by run: of its workers in a row, and the epochs logged at the last one


def load_ray() -> Any:
    """Import Ray, or raise a UserError with the install command."""
    try:
        import ray
    except ImportError as error:
        raise UserError("--ray needs Ray, which is not installed; `pip install 'mixmo[ray]'` adds it") from error
    return ray


def connect(address: str, gpus: float) -> Any:
    """Ray, connected to a running cluster; `auto` starts one on this machine if there is none."""
    ray = load_ray()
    if not ray.is_initialized():
        options = {"log_to_driver": False, "logging_level": "warning"}
        if address != "auto":
            check_address(address)
        try:
            ray.init(address=address, **options)
        except ConnectionError:
            if address != "auto":
                raise
            ray.init(include_dashboard=False, **options)
    there = ray.cluster_resources().get("GPU", 0)
    if gpus > there:
        raise UserError(
            f"--gpus-per-run {gpus:g}, but the Ray cluster has {there:g} GPUs; --gpus-per-run 0 trains on CPUs"
        )
    return ray


def check_address(address: str) -> None:
    """Try the address for 5 s: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise UserError(
            f"no Ray cluster at '{address}' ({error}); give HOST:PORT as `ray start --head` prints it, or auto"
        ) from error


def train_task(recipe: Recipe, folder: Path, runtime: Runtime) -> None:
    """Train a run in a Ray worker, or resume it."""
    train(recipe, folder, runtime, resume=True)


def run_on_ray(
    recipes: Sequence[Recipe], store: Store, runtime: Runtime, address: str = "auto", gpus: float = 1, cpus: float = 1
) -> Failures:
    """Queue every run; resume those whose worker died; return those that cannot be trained."""
    ray = connect(address, gpus)
    with terminated_as_interrupted():  # Ray's own handler would end all runs unsaved
        return _run(ray, recipes, store, runtime, gpus, cpus)


def _run(ray: Any, recipes: Sequence[Recipe], store: Store, runtime: Runtime, gpus: float, cpus: float) -> Failures:
    task = ray.remote(num_gpus=gpus, num_cpus=cpus, max_retries=0)(train_task)
    folders = {recipe: store.folder(recipe).resolve() for recipe in recipes}

    def submit(recipe: Recipe) -> Any:
        return task.remote(recipe, folders[recipe], runtime)

    remaining = Remaining(recipes, store)
    pending = {submit(recipe): recipe for recipe in recipes}
    failures: Failures = {}
    deaths: Deaths = {}
    shown = 0.0
    try:
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=1.0)
            for reference in ready:
                recipe = pending.pop(reference)
                folder = folders[recipe]
                problem = _problem(ray, reference, folder, deaths)
                if problem is None:
                    pending[submit(recipe)] = recipe
                elif problem:
                    say(failed(folder.name, problem, failures))
                    failures[recipe] = problem
                else:
                    done = len(recipes) - len(pending) - len(failures)
                    say(f"{folder.name} finished; {done} of {len(recipes)} done")
            if time.monotonic() - shown > EVERY:
                shown = time.monotonic()
                say(progress(recipes, list(pending.values()), folders) + remaining.text(failures))
    except KeyboardInterrupt:
        for reference in pending:
            ray.cancel(reference)  # raises SIGINT where it runs: the run is saved
        ray.wait(list(pending), num_returns=len(pending), timeout=SAVING)
        done = len(recipes) - len(pending) - len(failures)
        raise Stopped(f"stopped with {done} of {len(recipes)} runs done; the same command continues") from None
    return failures


def _problem(ray: Any, reference: Any, folder: Path, deaths: Deaths) -> str | None:
    """Why the run in `folder` failed; empty if it finished, None if it shall be queued again."""
    try:
        ray.get(reference)
        return ""
    except ray.exceptions.RayTaskError as error:
        return None if isinstance(error.cause, Stopped) else first_line(error.cause)  # stopped: its machine goes away
    except ray.exceptions.RayError as error:
        epochs = epochs_logged(folder)
        before, last = deaths.get(folder, (0, epochs))
        count = before + 1 if epochs <= last else 1
        deaths[folder] = (count, epochs)
        if count >= DEATHS:
            return f"its worker died {count} times ({type(error).__name__})"
        say(f"{folder.name}: its worker died after epoch {epochs}; it is queued again and resumes")
        return None
