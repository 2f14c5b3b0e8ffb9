"""Several runs at a time, and plans that are worked off in sittings."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import assert_same
from mixmo.engine import Runtime, train
from mixmo.recipes import named
from mixmo.recipes.schema import Recipe
from mixmo.reproduce import execute, processes
from mixmo.reproduce.execute import epochs_logged, run_by_workers
from mixmo.reproduce.processes import Processes
from mixmo.reproduce.store import Store

RUNTIME = Runtime(device="cpu", quiet=True)


def recipe(seed: int, epochs: int = 2) -> Recipe:
    return named("digits/cut-mixmo").replace(width=1, batch_size=256, epochs=epochs, seed=seed)


def test_runs_in_processes_equal_runs_in_sequence(tmp_path: Path) -> None:
    recipes = [recipe(seed) for seed in range(3)]
    store = Store(tmp_path / "out")
    assert run_by_workers(recipes, store, Processes(RUNTIME), jobs=2) == {}
    for each in recipes[:2]:
        found = store.find(each)
        assert found is not None
        assert_same(found, train(each, tmp_path / str(each.seed), RUNTIME))


def test_runs_are_saved_when_the_minutes_are_over_and_continue_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, store = recipe(0, epochs=12), Store(tmp_path / "out")
    folder = store.folder(one)

    def now() -> float:
        """The time is over once the first epochs are logged."""
        return time.monotonic() + (1e6 if epochs_logged(folder) > 1 else 0)

    monkeypatch.setattr(execute, "time", SimpleNamespace(monotonic=now))
    assert run_by_workers([one], store, Processes(RUNTIME), jobs=1, minutes=1000) == {}
    assert "1 of 1 runs are left" in capsys.readouterr().err
    assert store.find(one) is None
    assert store.begun(one)
    monkeypatch.undo()
    assert run_by_workers([one], store, Processes(RUNTIME), jobs=1) == {}
    found = store.find(one)
    assert found is not None
    assert_same(found, train(one, tmp_path / "whole", RUNTIME))


def test_a_run_that_had_not_begun_when_the_minutes_are_over_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is stopped while it imports the package."""
    store, clock = Store(tmp_path), iter([0.0] * 5 + [1e6] * 99)
    monkeypatch.setattr(execute, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert run_by_workers([recipe(0)], store, Processes(RUNTIME), jobs=1, minutes=1) == {}
    assert not store.begun(recipe(0))


def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, right = named("cifar100/vanilla"), recipe(1)
    store = Store(tmp_path)
    assert list(run_by_workers([wrong, right], store, Processes(replace(RUNTIME, data=tmp_path)), jobs=2)) == [wrong]
    assert store.find(right) is not None
    assert "cifar100" in capsys.readouterr().err


def test_a_worker_whose_parent_is_killed_saves_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on SIGTERM; the same command would find its runs taken otherwise."""
    sent = list[tuple[int, int]]()
    monkeypatch.setattr(processes.multiprocessing, "parent_process", lambda: SimpleNamespace(join=lambda: None))
    monkeypatch.setattr(processes.os, "kill", lambda *number: sent.append(number))
    processes._stop_without_parent()
    assert sent == [(os.getpid(), signal.SIGTERM)]
