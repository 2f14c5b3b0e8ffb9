"""SHA256SUMS: checksums of files that belong together; safetensors files have none of their own."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mixmo.utils.errors import UserError

NAME = "SHA256SUMS"  # in the format of `sha256sum -c`
WRITTEN_ONCE = ("recipe.yaml", "metrics.jsonl", "config.json", "model.safetensors")  # not again by --resume


def format_sums(files: Mapping[str, Path]) -> str:
    """Return the text of SHA256SUMS: one line per file, under the name that it has there."""
    return "".join(f"{sha256(file)}  {name}\n" for name, file in files.items())


def read_sums(folder: Path) -> dict[str, str]:
    """Return the checksums in a folder by file name; none if it has no SHA256SUMS, as from earlier versions."""
    if not (folder / NAME).is_file():
        return {}
    lines = (folder / NAME).read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: expected for expected, _, name in (line.partition("  ") for line in lines)}


def verify(file: Path) -> None:
    """Raise an error if a file differs from its checksum in the SHA256SUMS beside it."""
    expected = read_sums(file.parent).get(file.name)
    if expected is not None and sha256(file) != expected:
        raise mismatch(file)


def mismatch(file: Path) -> UserError:
    """Return the error for a file that differs from its checksum."""
    again = "" if file.name in WRITTEN_ONCE else " in a run, remove scores.json and train with --resume;"
    return UserError(
        f"{file} is not as it was when it was saved: it is damaged, edited or of another training; restore it from "
        f"a copy;{again} or remove {NAME} there to take it as it is"
    )


def hash_lines(lines: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Return a short checksum of each line of metrics.jsonl by epoch, independent of white space."""
    return {line["epoch"]: hashlib.sha256(json.dumps(line).encode()).hexdigest()[:16] for line in lines}


def check_lines(log: Path, found: Mapping[int, str], expected: Mapping[int, str]) -> None:
    """Raise an error if lines differ from the checksums in a checkpoint; lines may be missing."""
    if changed := [epoch for epoch, line_hash in found.items() if line_hash != expected.get(epoch)]:
        damage = f"its lines of {list_epochs(changed)} are damaged, edited or of another run"
        raise UserError(f"{log} is not as it was written: {damage}; restore it from a copy, or remove these lines")


def list_epochs(epochs: list[int]) -> str:
    """
    >>> list_epochs([3]), list_epochs([1, 2, 4, 5, 7])
    ('epoch 3', 'epochs 1, 2, 4, ...')
    """
    named = ", ".join(map(str, epochs[:3])) + (", ..." if len(epochs) > 3 else "")
    return f"epoch{'s' if len(epochs) > 1 else ''} {named}"


def sha256(file: Path) -> str:
    """Return the checksum of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def md5(file: Path) -> str:
    """Return the checksum that the publishers of the data sets give."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
