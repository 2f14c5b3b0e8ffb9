"""Workers that are tasks of Ray: on all GPUs of a server, or of the machines of a cluster.

A run whose worker or machine dies is queued again and resumes from its last checkpoint, so all machines must see the
same output folder (and the data) under the same path.
"""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mixmo.engine import Runtime, train
from mixmo.recipes.schema import Recipe
from mixmo.reproduce.execute import SAVING, epochs_logged, say
from mixmo.utils.errors import UserError, first_line
from mixmo.utils.signals import Stopped

DEATHS = 3  # of workers in a row, without an epoch in between, before a run is given up


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
    options = {"log_to_driver": False, "logging_level": "warning"}
    if not ray.is_initialized() and address != "auto":
        check_address(address)
        ray.init(address=address, **options)
    elif not ray.is_initialized():
        try:
            ray.init(address="auto", **options)
        except ConnectionError:
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


class RayTasks:
    """Train each run in a task of Ray, which queues those that find no free GPU."""

    def __init__(self, ray: Any, runtime: Runtime, gpus: float = 1, cpus: float = 1) -> None:
        self.ray, self.runtime = ray, runtime
        self.task = ray.remote(num_gpus=gpus, num_cpus=cpus, max_retries=0)(train_task)
        self.deaths: dict[Path, tuple[int, int]] = {}  # by run: in a row, and the epochs logged at the last one

    def start(self, recipe: Recipe, folder: Path) -> Any:
        return self.task.remote(recipe, folder, self.runtime)

    def ended(self, workers: Sequence[Any], timeout: float) -> Sequence[Any]:
        ready: Sequence[Any] = self.ray.wait(workers, num_returns=1, timeout=timeout)[0]
        return ready

    def outcome(self, worker: Any, folder: Path) -> str | None:
        errors = self.ray.exceptions
        try:
            self.ray.get(worker)
            return ""
        except errors.RayTaskError as error:  # stopped: its machine goes away
            return None if isinstance(error.cause, Stopped) else first_line(error.cause)
        except errors.RayError as error:
            epochs = epochs_logged(folder)
            before, last = self.deaths.get(folder, (0, epochs))
            count = before + 1 if epochs <= last else 1
            self.deaths[folder] = (count, epochs)
            if count >= DEATHS:
                return f"its worker died {count} times ({type(error).__name__})"
            say(f"{folder.name}: its worker died after epoch {epochs}; it is queued again and resumes")
            return None

    def stop(self, workers: Sequence[Any]) -> None:
        for worker in workers:
            self.ray.cancel(worker)  # raises SIGINT where it runs: the run is saved
        self.ray.wait(workers, num_returns=len(workers), timeout=SAVING)
