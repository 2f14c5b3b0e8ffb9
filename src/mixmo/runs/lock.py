"""A run directory belongs to one training process at a time; one that fails before the first step leaves nothing."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from mixmo.runs.directory import LOCK, make_folder
from mixmo.storage.files import file_lock, leftovers, write_errors


def has_begun(path: Path) -> bool:
    """Return whether anything was trained in a folder or the folders of its networks, even if the recipe is gone.

    A record of a NaN counts, since it is there to be looked at.
    """
    folders = [path, *(folder for folder in path.iterdir() if folder.is_dir())]
    if any((folder / "nonfinite.json").is_file() for folder in folders):
        return True
    logs = [folder / "metrics.jsonl" for folder in folders]
    return any((log.parent / "checkpoints").is_dir() or (log.is_file() and log.stat().st_size > 0) for log in logs)


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """Hold the lock of a run directory, which is created if needed; the system frees it however the process ends.

    Take it before reading anything there: of two processes that start at once, one finds all as it was, and the other
    raises an error.
    """
    busy = f"another process is training {path}; wait until it has ended, or give another --out"
    make_folder(path)
    with ExitStack() as held:
        with write_errors(path / LOCK):
            held.enter_context(file_lock(path / LOCK, busy))
        for leftover in leftovers(path):
            leftover.unlink(missing_ok=True)
        yield


@contextmanager
def removed_unless_begun(path: Path, folder: bool) -> Iterator[None]:
    """On an error before anything was trained, remove the files of the run, and with `folder` the folder too.

    A folder that existed before stays: it may be a link or a mount point.
    """
    try:
        yield
    except BaseException:
        with suppress(OSError):  # such as of a folder that is gone; the first error is the one to report
            if not has_begun(path):
                _empty(path)
                if folder:
                    path.rmdir()
        raise


def _empty(path: Path) -> None:
    # The recipe, then the lock go last: a process that comes meanwhile finds a locked run.
    for file in sorted(path.iterdir(), key=lambda file: (file.name == LOCK, file.name == "recipe.yaml")):
        shutil.rmtree(file, ignore_errors=True) if file.is_dir() else file.unlink(missing_ok=True)
