"""One process trains into a run directory at a time; a training that fails before its first step leaves nothing."""

import errno
import os
from pathlib import Path

import pytest

from mixmo import UserError
from mixmo.engine import Runtime, train
from mixmo.recipes import named
from mixmo.runs.directory import Run
from mixmo.runs.lock import claim

SMALL = named("digits/cut-mixmo").replace(epochs=2, width=1, batch_size=512)
QUIET = Runtime(device="cpu", quiet=True)


def test_second_claim_is_an_error_and_leaves_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    run, lock = Run.create(tmp_path / "run", SMALL), tmp_path / "run" / ".lock"
    with claim(run.path):
        for _ in range(2):  # who fails does not take the lock away from its holder
            with pytest.raises(UserError, match="another process is training"), claim(run.path):
                pass
        assert lock.exists()
    assert not lock.exists()
    # Another process ends, and a third one begins or not, between our opening the file and locking it.
    for meanwhile in (lambda *_: lock.unlink(), lambda *_: (lock.unlink(), lock.touch())):
        monkeypatch.setattr(fcntl, "flock", meanwhile)
        with pytest.raises(UserError, match="another process is training"), claim(run.path):
            pass
    assert lock.exists()


def test_files_left_by_a_killed_process_do_not_count(tmp_path: Path) -> None:
    for name in ("notes.tmp", ".hidden"):
        (tmp_path / name).touch()
        with pytest.raises(UserError, match="exists already and is not a run directory"):
            Run.create(tmp_path, SMALL)
        (tmp_path / name).unlink()
    for name in (".recipe.yaml.123.tmp", ".tmphuYM4D"):  # the second of safetensors
        (tmp_path / name).write_text("half")
    (tmp_path / ".lock").touch()
    run = Run.create(tmp_path, SMALL)
    with claim(run.path):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "recipe.yaml"]


def test_lock_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    run = Run.create(tmp_path, SMALL)
    (tmp_path / ".lock").mkdir()
    with pytest.raises(UserError, match=r"\.lock could not be written \(Is a directory\)"), claim(run.path):
        pass


@pytest.mark.parametrize("out", ["file/run", "loop/run"])
def test_folder_that_cannot_be_made_is_an_error(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UserError, match=r"cannot be made .* give another --out"):
        Run.create(tmp_path / out, SMALL)


@pytest.mark.parametrize("link", [False, True])
def test_failed_start_leaves_an_existing_folder_as_it_was(
    tmp_path: Path, link: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty folder, or a link to one; a folder that was made is removed."""
    (tmp_path / "folder").mkdir()
    out = tmp_path / "folder"
    if link:
        out = tmp_path / "link"
        out.symlink_to(tmp_path / "folder")
    monkeypatch.setattr("mixmo.engine.training.Trainer", broken)
    with pytest.raises(RuntimeError, match="broken"):
        train(SMALL, out, QUIET)
    assert out.is_dir()
    assert out.is_symlink() == link
    assert not list(out.iterdir())
    with pytest.raises(RuntimeError, match="broken"):
        train(SMALL, tmp_path / "new", QUIET)
    assert not (tmp_path / "new").exists()


def broken(*_: object) -> None:
    raise RuntimeError("broken")


def test_full_disk_at_the_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"recipe.yaml could not be written \(No space left on device\)"):
        train(SMALL, tmp_path / "new", QUIET)
    assert not list(tmp_path.iterdir())


def test_trained_epochs_stay_even_if_the_recipe_is_removed(tmp_path: Path) -> None:
    class Remover:
        def log_metrics(self, *_: object) -> None:
            (tmp_path / "run" / "recipe.yaml").unlink()
            raise KeyboardInterrupt

        def log_hyperparams(self, *_: object) -> None: ...
        def finalize(self, *_: object) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        train(SMALL, tmp_path / "run", QUIET, loggers=[Remover()])
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_size > 0
