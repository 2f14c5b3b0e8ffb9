"""A disk that fills up: whichever write fails, one sentence says so, and --resume ends at the undisturbed result."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from mixmo import UserError
from mixmo.engine import Runtime, train
from mixmo.recipes import named
from mixmo.runs.directory import Run

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
    with full_after(1 + round(share * (writes - 1))), pytest.raises((UserError, OSError), match="No space left"):
        train(RECIPE, out, RUNTIME)
    assert not (out / "scores.json").exists()
    assert same(train(RECIPE, out, RUNTIME, resume=True), undisturbed)
    assert not list(out.rglob("*.tmp"))
