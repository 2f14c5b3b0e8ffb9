"""Runs through a local Ray of two workers, one of them killed midway."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mixmo import UserError
from mixmo.engine import Runtime, train
from mixmo.recipes.schema import Recipe
from mixmo.reproduce import paper
from mixmo.reproduce.cluster import RayTasks, check_address, connect
from mixmo.reproduce.execute import run_by_workers
from mixmo.reproduce.plan import expand, needed
from mixmo.reproduce.store import Store, run_name
from mixmo.runs.checkpoint import Checkpoints
from mixmo.utils.signals import Stopped

ray = pytest.importorskip("ray")
RUNTIME = Runtime(device="cpu", quiet=True, save_seconds=0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two workers on this machine: no dashboard, little memory."""
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False, address="local")
    yield
    ray.shutdown()


def workers() -> list[int]:
    """The processes that train, among those that this test's Ray started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title, parent = (
                (folder / "cmdline").read_text(),
                (folder / "stat").read_text().rpartition(")")[2].split()[1],
            )
            ancestor = (Path("/proc") / parent / "stat").read_text().rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            continue
        # Ray's worker is a child of its raylet, which this process started.
        if title.startswith("ray::train_task") and str(os.getpid()) in (parent, ancestor):
            found.append(int(folder.name))
    return found


def kill_one(store: Store, recipes: list[Recipe], killed: list[int]) -> None:
    """Kill a worker once all that train have something to resume from."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not killed:
        left = [recipe for recipe in recipes if store.find(recipe) is None]
        saved = [recipe for recipe in left if Checkpoints(store.folder(recipe) / "checkpoints").latest()]
        if left and len(saved) == len(left) == len(training := workers()):
            os.kill(training[0], signal.SIGKILL)
            killed.append(training[0])
        time.sleep(0.2)


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_resumes_and_finishes(
    cluster: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, killed = Store(tmp_path / "out"), list[int]()
    plan = expand(paper.load("best-ensembles"), "smoke", {"epochs": 3, "batch_size": 256}, seeds=2)
    recipes = list(needed([plan], store))[:2]
    thread = threading.Thread(target=kill_one, args=(store, recipes, killed))
    thread.start()
    failures = run_by_workers(recipes, store, RayTasks(connect("auto", 0), RUNTIME, gpus=0))
    thread.join()
    said = capsys.readouterr().err
    assert not failures
    assert len(killed) == 1
    assert said.count("its worker died") == 1
    assert "2 of 2 done" in said
    # The same numbers as of a run that nothing disturbed.
    (broken,) = [recipe for recipe in recipes if f"{run_name(recipe)}: its worker died" in said]
    alone, run = train(broken, tmp_path / "alone", RUNTIME), store.find(broken)
    assert run is not None
    assert all(run.read_scores()[which] == alone.read_scores()[which] for which in ("best", "last"))
    assert all(store.find(recipe) for recipe in recipes)


@pytest.mark.slow
def test_sigterm_saves_what_is_under_way(cluster: None, tmp_path: Path) -> None:
    """As a cluster ends a job. Ray's own handler would crash, with nothing saved."""
    store = Store(tmp_path / "out")
    (recipe,) = list(needed([expand(paper.load("encoder-norms"), "smoke", {"epochs": 200})], store))
    before = signal.getsignal(signal.SIGTERM)

    def terminate() -> None:
        deadline = time.monotonic() + 100
        while not (store.folder(recipe) / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    with pytest.raises(Stopped, match="0 of 1 runs done; the same command continues"):
        run_by_workers([recipe], store, RayTasks(connect("auto", 0), Runtime(device="cpu", quiet=True), gpus=0))
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
    assert Checkpoints(store.folder(recipe) / "checkpoints").latest()
    assert store.find(recipe) is None


@pytest.mark.slow
def test_a_run_that_cannot_be_trained_is_named(cluster: None, tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    (recipe,) = list(needed([expand(paper.load("encoder-norms"), "smoke", {"epochs": 1})], store))
    store.folder(recipe).mkdir(parents=True)
    (store.folder(recipe) / "notes.txt").write_text("mine")
    failures = run_by_workers([recipe], store, RayTasks(connect("auto", 0), RUNTIME, gpus=0))
    assert "exists already" in failures[recipe]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "somewhere", "ray://127.0.0.1:1"])
def test_an_unreachable_cluster_raises_an_error(address: str) -> None:
    with pytest.raises(UserError, match="no Ray cluster at"):
        check_address(address)


@pytest.mark.slow
def test_gpus_that_are_not_there(cluster: None) -> None:
    with pytest.raises(UserError, match="has 0 GPUs; --gpus-per-run 0"):
        connect("auto", gpus=1)
