"""What belongs together, by checksum: a file that changed on the disk, or is of another run, is noticed.

safetensors files carry none: with a bit flipped, or taken from another seed, they load as well as ever.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mixmo.utils.errors import UserError

NAME = "SHA256SUMS"  # in the form that `sha256sum -c` reads
WRITTEN_ONCE = ("recipe.yaml", "metrics.jsonl", "config.json", "model.safetensors")  # what no --resume makes again


def sums(files: Mapping[str, Path]) -> str:
    """A line for each file, by the name that it has, or will have, as seen from where the sums are put."""
    return "".join(f"{digest(file)}  {name}\n" for name, file in files.items())


def read(folder: Path) -> dict[str, str]:
    """The sums in a folder by name; none where earlier versions wrote it, or where it was copied without them."""
    if not (folder / NAME).is_file():
        return {}
    lines = (folder / NAME).read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: expected for expected, _, name in (line.partition("  ") for line in lines)}


def check(file: Path) -> None:
    """Refuses a file that is not the one that the sums beside it were made of."""
    expected = read(file.parent).get(file.name)
    if expected is not None and digest(file) != expected:
        raise changed(file)


def changed(file: Path) -> UserError:
    again = "" if file.name in WRITTEN_ONCE else " in a run, remove scores.json and train with --resume;"
    return UserError(
        f"{file} is not as it was when it was saved: it is damaged, edited or of another training; bring it back from "
        f"a copy;{again} or remove {NAME} there to take it as it is"
    )


def of_lines(lines: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """What each epoch's line of metrics.jsonl says, in few characters; however it is spaced, and whatever ends it."""
    return {line["epoch"]: hashlib.sha256(json.dumps(line).encode()).hexdigest()[:16] for line in lines}


def check_lines(log: Path, found: Mapping[int, str], expected: Mapping[int, str]) -> None:
    """Refuses lines that are not those that a checkpoint remembers; they may be fewer."""
    if changed := [epoch for epoch, of_line in found.items() if of_line != expected.get(epoch)]:
        raise UserError(
            f"{log} is not as it was written: its lines of {these(changed)} are damaged, edited or of another run; "
            "bring it back from a copy, or remove these lines to go on without them"
        )


def these(epochs: list[int]) -> str:
    """
    >>> these([3]), these([1, 2, 4, 5, 7])
    ('epoch 3', 'epochs 1, 2, 4 and 2 more')
    """
    named = ", ".join(map(str, epochs[:3])) + (f" and {len(epochs) - 3} more" if len(epochs) > 3 else "")
    return f"epoch{'s' if len(epochs) > 1 else ''} {named}"


def digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def md5(path: Path) -> str:
    """The checksum that the data sets' publishers give."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
