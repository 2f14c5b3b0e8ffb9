"""How runs are queued through Ray, by a Ray that answers as the tests say and starts nothing."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mixmo import UserError
from mixmo.engine import Runtime
from mixmo.recipes.schema import Recipe
from mixmo.reproduce import cluster, paper
from mixmo.reproduce.cluster import RayTasks
from mixmo.reproduce.execute import progress, run_by_workers
from mixmo.reproduce.plan import expand, needed
from mixmo.reproduce.store import Store, run_name
from mixmo.utils.signals import Stopped

RUNTIME = Runtime(device="cpu", quiet=True)


class RayError(Exception):
    """Its worker died."""


class RayTaskError(RayError):
    """The task raised an error of its own."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class FakeRay:
    """Tasks end one after the other, in the order in which they were queued, each as `outcome` says of its run."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, outcome: Callable[[Path], None], interrupted: int | None = None) -> None:
        self.outcome, self.interrupted = outcome, interrupted  # while it waits, for which time
        self.queued, self.cancelled, self.waits = list[Path](), list[int](), list[tuple[int, float]]()

    def remote(self, **options: float) -> Callable[[Any], Any]:
        self.options = options

        def queue(recipe: Recipe, folder: Path, runtime: Runtime) -> int:
            assert runtime is RUNTIME
            assert folder.name == run_name(recipe)
            self.queued.append(folder)
            return len(self.queued) - 1

        return lambda task: SimpleNamespace(remote=queue)

    def wait(self, references: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        self.waits.append((num_returns, timeout))
        if len(self.waits) == self.interrupted:
            raise KeyboardInterrupt
        return references[:num_returns], references[num_returns:]

    def get(self, reference: int) -> None:
        self.outcome(self.queued[reference])

    def cancel(self, reference: int) -> None:
        self.cancelled.append(reference)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "out")


@pytest.fixture
def recipes(store: Store) -> list[Recipe]:
    """Three runs of four epochs."""
    return list(needed([expand(paper.load("best-ensembles"), "smoke", {"epochs": 4})], store))


def log(folder: Path, epochs: int) -> None:
    """Every second epoch and the last are scored; the next line is being written."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "environment.json").touch()
    scored = [epoch for epoch in range(1, epochs + 1) if epoch % 2 == 0 or epoch == epochs]
    (folder / "metrics.jsonl").write_text("".join(f'{{"epoch": {epoch}}}\n' for epoch in scored) + '{"epo')


def test_runs_whose_worker_died_are_queued_again(
    store: Store, recipes: list[Recipe], capsys: pytest.CaptureFixture[str]
) -> None:
    """One dies after two epochs, one cannot be trained, one was stopped with its machine."""
    dies, fails, stops = names = [run_name(recipe) for recipe in recipes]
    first = {
        dies: RayError(),
        fails: RayTaskError(UserError("it exists already\nat some place")),
        stops: RayTaskError(Stopped("stopped")),
    }

    def outcome(folder: Path) -> None:
        if folder.name == dies:
            log(folder, 2)
        if error := first.pop(folder.name, None):
            raise error

    ray = FakeRay(outcome)
    failures = run_by_workers(recipes, store, RayTasks(ray, RUNTIME, gpus=0.5, cpus=2))
    assert failures == {recipes[1]: "it exists already"}
    assert ray.options == {"num_gpus": 0.5, "num_cpus": 2, "max_retries": 0}
    assert [folder.name for folder in ray.queued] == [*names, dies, stops]
    assert all(folder == store.folder(recipe).resolve() for folder, recipe in zip(ray.queued, recipes, strict=False))
    died, shown, *rest = capsys.readouterr().err.splitlines()
    assert died == f"{dies}: its worker died after epoch 2; it is queued again and resumes"
    assert shown.startswith(f"0 of 3 ended, 2 not begun; epochs: {dies} 2/4; all: ")  # at once, then every 30 s
    assert rest == [
        f"{fails} failed: it exists already",
        f"{dies} finished; 1 of 3 done",
        f"{stops} finished; 2 of 3 done",
    ]


def test_a_run_is_given_up_after_three_deaths_without_an_epoch(tmp_path: Path) -> None:
    def die(folder: Path) -> None:
        raise RayError

    tasks = RayTasks(FakeRay(die), RUNTIME)
    tasks.ray.queued.append(tmp_path)

    def problem(epochs: int) -> str | None:
        log(tmp_path, epochs)
        return tasks.outcome(0, tmp_path)

    assert [problem(epochs) for epochs in (3, 3, 4, 5, 5)] == [None] * 5
    assert problem(5) == "its worker died 3 times (RayError)"


def test_ctrl_c_cancels_what_is_under_way_and_lets_it_save(
    store: Store, recipes: list[Recipe], capsys: pytest.CaptureFixture[str]
) -> None:
    """After the first has failed."""

    def fail(folder: Path) -> None:
        raise RayTaskError(UserError("no room"))

    ray = FakeRay(fail, interrupted=2)
    with pytest.raises(Stopped, match="stopped with 0 of 3 runs done; the same command continues"):
        run_by_workers(recipes, store, RayTasks(ray, RUNTIME))
    assert ray.cancelled == [1, 2]
    assert ray.waits[1:] == [(1, 1.0), (2, 300.0)]  # for both, for five minutes
    said = [f"{run_name(recipes[0])} failed: no room", "1 of 3 ended, 2 not begun; epochs: -"]
    assert capsys.readouterr().err.splitlines() == said


def test_how_far_all_runs_are(recipes: list[Recipe], tmp_path: Path) -> None:
    folders = {recipe: tmp_path / str(number) for number, recipe in enumerate(recipes)}
    assert progress(recipes, recipes, folders) == "0 of 3 ended, 3 not begun; epochs: -"
    log(folders[recipes[1]], 3)
    assert progress(recipes, recipes[1:], folders) == "1 of 3 ended, 1 not begun; epochs: 1 3/4"


@pytest.mark.parametrize("there", [True, False])
def test_a_cluster_is_started_where_there_is_none(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, checked = list[dict[str, Any]](), list[str]()

    def init(**options: Any) -> None:
        calls.append(options)
        if "address" in options and not there:
            raise ConnectionError("no cluster")

    ray = SimpleNamespace(init=init, is_initialized=lambda: False, cluster_resources=lambda: {"GPU": 2.0})
    monkeypatch.setattr(cluster, "load_ray", lambda: ray)
    monkeypatch.setattr(cluster, "check_address", checked.append)
    assert cluster.connect("auto", 2) is ray
    options = {"log_to_driver": False, "logging_level": "warning"}
    assert calls == [{"address": "auto", **options}] + [{"include_dashboard": False, **options}] * (not there)
    if there:
        assert cluster.connect("head:6379", 0) is ray
        assert calls[1]["address"] == "head:6379"
    else:
        with pytest.raises(ConnectionError):
            cluster.connect("head:6379", 0)
    assert checked == ["head:6379"]


def test_more_gpus_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cluster that this process is connected to already."""
    resources = {"GPU": 2.0}
    ray = SimpleNamespace(is_initialized=lambda: True, cluster_resources=lambda: resources)
    monkeypatch.setattr(cluster, "load_ray", lambda: ray)
    assert cluster.connect("auto", 2) is ray
    with pytest.raises(UserError, match=r"--gpus-per-run 2\.5, but the Ray cluster has 2 GPUs; --gpus-per-run 0"):
        cluster.connect("auto", 2.5)
    resources.clear()
    assert cluster.connect("auto", 0) is ray
    with pytest.raises(UserError, match="--gpus-per-run 1, but the Ray cluster has 0 GPUs"):
        cluster.connect("auto", 1)
