"""A dozen of the trials of `make torture`, and the faults of several processes."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(not hasattr(os, "fork") or not Path("/proc").is_dir(), reason="Linux")


def output(script: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, HERE / script, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_killed_command_ends_as_if_nothing_had_happened() -> None:
    scenarios = ["train", "train --keep-every", "train --stream, a worker", "data get", "data corrupt"]
    assert "12 trials; 12 survived" in output("torture.py", "--count", "12", "--only", *scenarios)


@pytest.mark.slow
def test_processes_that_are_lost_are_named_and_the_training_resumes() -> None:
    """A killed one: tests/engine/test_distributed.py, with torchrun."""
    found = output("ranks.py", "--only", "other data", "out of memory")
    assert "all ended within a minute with its sentence, and resumed" in found


def test_a_commit_between_two_runs_makes_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    content = importlib.import_module("torture").content
    for commit, threads in ("a", 1), ("b", 1), ("b", 2):
        (tmp_path / f"{commit}{threads}").mkdir()
        text = json.dumps({"commit": commit, "threads": threads})
        (tmp_path / f"{commit}{threads}" / "environment.json").write_text(text)
    a1, b1, b2 = (content(folder, training=True) for folder in sorted(tmp_path.iterdir()))
    assert a1 == b1 != b2
