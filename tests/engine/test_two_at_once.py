"""Two trainings in one new folder: whenever the second comes, one of them trains, the other raises an error."""

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mixmo import UserError
from mixmo.data.types import Dataset
from mixmo.engine import Runtime, train
from mixmo.recipes import named
from mixmo.runs.checkpoint import State
from mixmo.runs.directory import Run

fcntl = pytest.importorskip("fcntl")  # where files can be locked
RECIPE = named("digits/cut-mixmo").replace(epochs=1, width=1)
LATER = RECIPE.replace(seed=1)
QUIET = Runtime(device="cpu", quiet=True)


class Second:
    """A training of its own, which goes on until the first has come to its end."""

    def __init__(self, out: Path) -> None:
        self.out, self.said = out, ""
        self.trains, self.settled, self.over = False, threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        try:
            train(LATER, self.out, QUIET)
        except UserError as error:
            self.said = str(error)
        self.settled.set()

    def begin(self) -> None:
        """Until it trains or raises."""
        self.thread.start()
        assert self.settled.wait(10)

    def end(self) -> None:
        self.over.set()
        self.thread.join()


class Trainer:
    """Trains nothing, but as long as is needed."""

    second: Second
    fails = False

    def __init__(self, recipe: Any, dataset: Any, run: Run, *_: Any) -> None:
        if threading.current_thread() is not self.second.thread and self.fails:
            (run.path / "dataset.json").touch()
            raise UserError("too little memory")
        self.run_folder, self.state, self.schedule = run, State(), SimpleNamespace(steps=1)

    def run(self, until: int | None) -> None:
        (self.run_folder.path / "checkpoints").mkdir()
        if threading.current_thread() is self.second.thread:
            self.second.trains = True
            self.second.settled.set()
            assert self.second.over.wait(10)


@contextmanager
def before(count: int, act: Callable[[], None]) -> Iterator[list[int]]:
    """Something happens before the first process, this thread, touches the file system for the time number `count`."""
    done, us = [0], threading.current_thread()

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if threading.current_thread() is us:
                done[0] += 1
                if done[0] == count:
                    act()
            return original(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("exists", "is_dir", "is_file", "iterdir", "mkdir", "open", "unlink", "rmdir", "stat"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        for name in ("link", "fsync"):
            patch.setattr(os, name, counted(getattr(os, name)))
        patch.setattr(fcntl, "flock", counted(fcntl.flock))
        yield done


@pytest.mark.parametrize("fails", [False, True])
def test_a_second_training_at_any_moment_leaves_one_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: Dataset, fails: bool
) -> None:
    """Of a first training that goes on, or that fails before its first step and leaves nothing behind."""
    monkeypatch.setattr("mixmo.engine.training.Trainer", Trainer)
    monkeypatch.setattr("mixmo.data.load", lambda *_: digits)
    monkeypatch.setattr(Trainer, "fails", fails)
    winners = []
    for moment in itertools.count(1):
        out, said = tmp_path / str(moment), ""
        Trainer.second = second = Second(out)
        with before(moment, second.begin) as done:
            try:
                train(RECIPE, out, QUIET)
            except UserError as error:
                said = str(error)
        if done[0] < moment:
            break
        busy = f"another process is training {out}; wait until it has ended, or give another --out"
        if second.trains:
            assert said == ("too little memory" if 1 in winners else busy)
            assert (out / ".lock").exists()  # a third would be rejected too
            assert Run.open(out).recipe == LATER
        else:
            assert said == ("too little memory" if fails else "")
            assert second.said == busy
            assert out.exists() != fails
        second.end()
        winners.append(2 if second.trains else 1)
    assert [winner for winner, _ in itertools.groupby(winners)] == ([2, 1, 2] if fails else [2, 1])
