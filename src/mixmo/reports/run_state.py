"""Whether a run has finished, is being trained, or was stopped: read without disturbing the training."""

import time
from pathlib import Path

from mixmo.runs.directory import LOCK

FINISHED, TRAINING, STOPPED, DAMAGED = "finished", "training", "stopped", "damaged"
QUIET = 60.0  # seconds without a change after which a training on another machine counts as stopped


def describe(path: Path, finished: bool, held: set[int] | None = None) -> str:
    """Return the state of a run; `held` is what `locked_inodes` returned, if it was called already."""
    return FINISHED if finished else TRAINING if is_training(path, held) else STOPPED


def is_training(path: Path, held: set[int] | None = None) -> bool:
    """Return whether a process trains this run, or a network of it.

    A training holds a lock. Taking it to try would make a training that starts at that moment fail, so the list of all
    locks is read instead. It lacks those of other machines and containers: a run of theirs is being trained if its lock
    is there and its files have changed lately.
    """
    locks = [file for file in (path / LOCK, *path.glob(f"[0-9]*/{LOCK}")) if file.exists()]
    held = locked_inodes() if held is None else held
    return any(_inode(file) in held for file in locks) or (bool(locks) and _changed(path, QUIET))


def locked_inodes() -> set[int]:
    """Return the inodes of the files that processes of this machine have locked; none where that is not listed."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return set()
    fields = [line.split() for line in lines]
    return {int(words[-3].split(":")[-1]) for words in fields if "FLOCK" in words and "->" not in words}


def _inode(file: Path) -> int | None:
    try:
        return file.stat().st_ino
    except OSError:
        return None


def _changed(path: Path, seconds: float) -> bool:
    """Whether a file of the run was written within the last seconds."""
    times = []
    for file in (path / "metrics.jsonl", path / "checkpoints", path / LOCK, *path.glob("[0-9]*/metrics.jsonl")):
        try:
            times.append(file.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0) > time.time() - seconds
