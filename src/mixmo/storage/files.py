"""Atomic files, file locks and staging folders: a file is complete or not there at all."""

import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mixmo.utils.errors import UserError

REMEDIES = {  # by the reason that a file cannot be written
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space, or inodes (`df -i`)"),
    errno.EFBIG: "allow larger files (`ulimit -f`) or give --shard-mb",
    errno.ENOENT: "restore its folder, which was removed or moved",
    **dict.fromkeys((errno.EACCES, errno.EROFS), "make its folder writable"),
}


def leftovers(folder: Path) -> list[Path]:
    """Return the temporary files that a killed process left in a folder: of `atomic_write`, and of safetensors."""
    return [path for path in folder.glob(".*") if is_leftover(path)]


def is_leftover(path: Path) -> bool:
    """Return whether a path has the name of a temporary file.

    >>> [is_leftover(Path(name)) for name in (".recipe.yaml.1f.tmp", ".tmphuYM4D", ".tmpdir.yaml", "notes.tmp")]
    [True, True, False, False]
    """
    return re.fullmatch(r"\..*\.tmp|\.tmp\w{6}", path.name) is not None


class DiskError(UserError):
    """A file could not be written."""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` if the block succeeds, and is removed if it fails."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # containers may share process ids
    try:
        with write_errors(path):
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink()


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Raise errors of the file system as a DiskError that names `path` and the remedy for its reason."""
    try:
        yield
    except OSError as error:
        what, again = (
            f"{path} could not be written ({error.strerror})",
            "run the command again (a training: with --resume)",
        )
        raise DiskError(f"{what}; existing files are intact: {remedy(error)}, then {again}") from error


def remedy(error: OSError) -> str:
    """Return what to do about a file that cannot be written."""
    return REMEDIES.get(error.errno or 0, "check the disk")


@contextmanager
def file_lock(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock on the file `path`, or raise an error that says `busy`; the system frees it when the process ends."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with path.open("w") as file, _closed_in_forks(file):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(busy) from error
        except OSError:  # a file system without locks: better to work without than not at all
            pass
        if not _is_same(path, file):
            raise UserError(busy)  # removed by its holder since we opened it: a third process may hold a new one
        try:
            yield
        finally:
            with suppress(OSError):
                if _is_same(path, file):  # the folder may have been cleared, and another process begun to work there
                    path.unlink()


_held: set[IO[str]] = set()  # by this process


@contextmanager
def _closed_in_forks(file: IO[str]) -> Iterator[None]:
    """Close a file in forked processes, such as a DataLoader's workers: they would hold its lock after our death."""
    _held.add(file)
    try:
        yield
    finally:
        _held.discard(file)


def _close_held() -> None:
    for file in _held:
        file.close()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_held)


def _is_same(path: Path, file: IO[str]) -> bool:
    """Whether `path` is still this open file."""
    return path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))


@contextmanager
def staging_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path` for unfinished files, held by one process at a time, removed at the end."""
    folder, lock = (path.parent / f".{path.name}.{kind}" for kind in ("draft", "lock"))
    busy = f"{path} is being written by another process; wait for it, or name another place"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(lock, busy):
            shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); make room, or name another place") from error
