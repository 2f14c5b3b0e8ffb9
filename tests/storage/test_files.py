"""Files are written atomically, locked by one process at a time, and errors of the disk are one sentence."""

import errno
import os
import signal
from pathlib import Path

import pytest

from mixmo import UserError
from mixmo.storage.files import atomic_write, file_lock, staging_folder, write_errors


def test_last_of_two_concurrent_writers_wins(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "table") as one:
        one.write_text("one")
        with atomic_write(tmp_path / "table") as two:
            two.write_text("two")
        assert (tmp_path / "table").read_text() == "two"
    assert (tmp_path / "table").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_failed_write_leaves_the_earlier_file(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("before")
    with pytest.raises(TypeError), atomic_write(tmp_path / "table") as temporary:
        temporary.write_text(None)  # type: ignore[arg-type]
    assert (tmp_path / "table").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "space"), (errno.EACCES, "writable"), (errno.ENOENT, "removed"), (errno.EIO, "check the disk")],
)
def test_write_error_names_reason_and_remedy(tmp_path: Path, number: int, remedy: str) -> None:
    with pytest.raises(UserError, match=rf"{os.strerror(number)}.*{remedy}"), write_errors(tmp_path / "file"):
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (UserError("another sentence"), "^another sentence$"),
        (OSError(errno.ENOSPC, "No space left"), r"a cannot be written \(No space left\)"),
    ],
)
def test_staging_folder_is_removed_on_an_error(tmp_path: Path, fault: Exception, message: str) -> None:
    with pytest.raises(UserError, match=message), staging_folder(tmp_path / "a"):
        raise fault
    assert not list(tmp_path.iterdir())


def test_lock_works_without_support_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with file_lock(tmp_path / "lock", "busy"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_forked_process_does_not_hold_the_lock_when_its_parent_is_killed(tmp_path: Path) -> None:
    """As a DataLoader's workers, which live on for some seconds."""
    reading, writing = os.pipe()
    holder = os.fork()
    if holder == 0:
        with file_lock(tmp_path / "lock", "busy"):
            if os.fork() == 0:
                os.close(writing)
                os.read(reading, 1)  # until the test closes the pipe
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(holder, 0)
    with file_lock(tmp_path / "lock", "busy"):
        pass
    os.close(reading)
    os.close(writing)
