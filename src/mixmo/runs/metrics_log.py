"""metrics.jsonl: one line per scored epoch, appended while training."""

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mixmo.runs.checkpoint import Checkpoints
from mixmo.runs.contents import is_line
from mixmo.storage import checksums
from mixmo.storage.files import write_errors
from mixmo.storage.plain_json import parse_json
from mixmo.utils.errors import UserError


def read_log(path: Path, finished: bool) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, verified by SHA256SUMS or, before a run has `finished`, by its checkpoint."""
    # Before the lines, of which a training process may append more: the log has all that a checkpoint has.
    state = None if finished else Checkpoints(path.with_name("checkpoints")).state()
    lines = list[dict[str, Any]]()
    if path.exists():
        text = path.read_text(encoding="utf-8", errors="replace")
        checksums.verify(path)
        lines = _parse(text, path)
    if state is not None and state.logged is not None:
        until = [line for line in lines if line["epoch"] <= state.epochs_logged]
        checksums.check_lines(path, checksums.hash_lines(until), state.logged)
        if lost := sorted(state.logged.keys() - {line["epoch"] for line in until}):
            remedy = "restore it from a copy, or training continues without them"
            warnings.warn(
                f"{path} has lost its lines of {checksums.list_epochs(lost)}; {remedy}", stacklevel=2
            )  # once, whoever reads
    return lines


def _parse(text: str, path: Path) -> list[dict[str, Any]]:
    entries, last = list[dict[str, Any]](), 0
    for number, line in enumerate(text.split("\n")[:-1], 1):  # without the half a line that a killed process may leave
        try:
            entries.append(parse_json(line))
            if not is_line(entries[-1]):
                raise ValueError
            last, before = entries[-1]["epoch"], last
            if not last > before:
                raise ValueError
        except ValueError as error:
            raise UserError(f"{path} is damaged: line {number} is not a later epoch; remove that line") from error
    return entries


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Append one epoch, which is on the disk before the checkpoint that counts it; or nothing at all."""
    text = (json.dumps(line) + "\n").encode()
    with write_errors(path), path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            while text:
                text = text[file.write(text) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise


def flat(value: Any, between: str, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in nested dicts and lists, such as a line of metrics.jsonl, each with its path.

    >>> dict(flat({"epoch": 1, "test": {"members": [{"top1": 0.5}], "diversity": None}}, "."))
    {'epoch': 1, 'test.members.0.top1': 0.5}
    """
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(inner, between, f"{path}{between}{key}" if path else str(key))
    elif isinstance(value, int | float):
        yield path, value
