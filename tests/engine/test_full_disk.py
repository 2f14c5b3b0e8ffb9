"""A disk that fills up: whichever write fails, one sentence says so, and the end is the undisturbed result."""

import errno
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from mixmo import UserError
from mixmo.engine import Runtime, train
from mixmo.engine.trainer import Trainer
from mixmo.recipes import named
from mixmo.runs.directory import Run
from mixmo.runs.metrics_log import append_line
from mixmo.storage.files import write_errors

RECIPE = named("digits/cut-mixmo").replace(epochs=2, width=1, batch_size=512, validation=200)
RUNTIME = Runtime(device="cpu", quiet=True, keep_every=1)


@contextmanager
def full_after(count: int) -> Iterator[list[int]]:
    """The write number `count` fails for want of space, and only that one; gives how many there were."""
    done = [0]

    def counted(original: Callable[..., Any], writes: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if writes(*arguments):
                done[0] += 1
                if done[0] == count:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[-1]))
            return original(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("write_bytes", "write_text", "mkdir", "rename", "replace", "touch"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        patch.setattr(Path, "open", counted(Path.open, lambda _, mode="r", *__: mode[0] in "wa"))
        patch.setattr(safetensors.torch, "save_file", counted(safetensors.torch.save_file))
        patch.setattr(os, "fsync", counted(os.fsync))
        yield done


def same(run: Run, other: Run) -> bool:
    """Scores, logits and weights to the last bit, and every epoch's scores."""
    files = ("last.safetensors", "best.safetensors", "logits-last.safetensors", "logits-best.safetensors")
    epochs = [[(line["epoch"], line["train"], line["test"]) for line in one.read_metrics()] for one in (run, other)]
    return epochs[0] == epochs[1] and all((run.path / f).read_bytes() == (other.path / f).read_bytes() for f in files)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, int]:
    """An undisturbed training, and how often it writes."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    with full_after(-1) as done:
        run = train(RECIPE, out, RUNTIME)
    return run, done[0]


@pytest.mark.parametrize("share", [0.25, 0.75, 1.0])
def test_any_write_may_fail(finished: tuple[Run, int], tmp_path: Path, share: float) -> None:
    undisturbed, writes = finished
    out = tmp_path / "run"
    with full_after(1 + round(share * (writes - 1))), warnings.catch_warnings(record=True) as caught:
        try:
            train(RECIPE, out, RUNTIME)
        except (UserError, OSError) as error:
            said = str(error)
        else:
            said = " ".join(str(warning.message) for warning in caught)
    assert "No space left" in said
    assert same(train(RECIPE, out, RUNTIME, resume=True), undisturbed)
    assert not list(out.rglob("*.tmp"))


class Writable:
    """A logger after whose first epoch the disk can be written again."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.patch.undo()

    def log_hyperparams(self, params: dict[str, Any]) -> None: ...
    def finalize(self, status: str) -> None: ...


def test_training_goes_on_while_metrics_cannot_be_written(
    finished: tuple[Run, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that is read-only for an epoch: nothing is lost."""

    def read_only(path: Path, _: object) -> None:
        with write_errors(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("mixmo.runs.directory.append_line", read_only)
    with pytest.warns(UserWarning, match=r"metrics.jsonl could not be written \(Read-only.*training goes on"):
        run = train(RECIPE, tmp_path / "run", RUNTIME, loggers=[Writable(monkeypatch)])
    assert same(run, finished[0])


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that files were given, on a disk that is full for the first of them."""
    names, rename = list[str](), Path.rename

    def full_at_first(path: Path, target: Path) -> Path:
        names.append(target.name)
        if len(names) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", full_at_first)
    return names


def test_training_goes_on_without_a_checkpoint(finished: tuple[Run, int], tmp_path: Path, renamed: list[str]) -> None:
    """The disk is full for the checkpoint of the first epoch; that of the last is written."""
    with pytest.warns(UserWarning, match=r"could not be written \(No space left.*training goes on"):
        run = train(RECIPE, tmp_path / "run", RUNTIME)
    assert same(run, finished[0])
    assert [path.name for path in (run.path / "checkpoints").glob("[0-9]*")] == [renamed[-1]]


def test_unreadable_images_after_a_failed_checkpoint_still_save(
    tmp_path: Path, renamed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the images is raised, not that of the disk, which has room again."""
    draws = Trainer.draws

    def unreadable(trainer: Trainer, first: int, last: int) -> Any:
        if trainer.state.epochs_logged:
            raise UserError("the images cannot be read")
        yield from draws(trainer, first, last)

    monkeypatch.setattr(Trainer, "draws", unreadable)
    with pytest.raises(UserError, match="images cannot be read"), pytest.warns(UserWarning, match="training goes on"):
        train(RECIPE, tmp_path / "run", RUNTIME)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*")] == [renamed[-1]]


def test_a_line_is_appended_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "metrics.jsonl"
    append_line(log, {"epoch": 1})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left"):
            append_line(log, {"epoch": 2})
    append_line(log, {"epoch": 2})
    assert log.read_text() == '{"epoch": 1}\n{"epoch": 2}\n'
