"""What belongs to a checkpoint, by checksum: a file that changed on the disk, or is of another run, is noticed.

safetensors files carry none: with a bit flipped, or taken from another seed, they load as well as ever.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from mixmo.errors import UserError

NAME = "SHA256SUMS"  # in the form that `sha256sum -c` reads


def sums(checkpoint: Path, beside: Iterable[Path] = ()) -> str:
    """A line for each file of a checkpoint, and of those beside it that it needs."""
    files = [*sorted(checkpoint.iterdir()), *beside]
    return "".join(f"{digest(file)}  {os.path.relpath(file, checkpoint)}\n" for file in files)


def check_sums(checkpoint: Path) -> None:
    """Refuses a checkpoint with files that are not those it was saved with. Ones of earlier versions have no sums."""
    if not (checkpoint / NAME).exists():
        return
    for line in (checkpoint / NAME).read_text(encoding="utf-8", errors="replace").splitlines():
        expected, _, name = line.partition("  ")
        # Not through the file system: the folder of checkpoints may be a link to another disk.
        file = Path(os.path.normpath(checkpoint / name))
        if not file.is_file() or digest(file) != expected:
            raise UserError(f"{file} is not as it was when this was saved")


def digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
