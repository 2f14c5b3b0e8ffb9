"""Bad numbers, closed streams and odd names: one sentence or the result, never a traceback."""

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mixmo import UserError
from mixmo.cli.app import main
from mixmo.engine import train
from mixmo.recipes import named
from mixmo.reproduce.execute import say
from mixmo.runs.directory import Run
from mixmo.utils.progress import Lasting
from mixmo.utils.signals import stop_signals

REFUSED = {
    "show digits/cut-mixmo --device meta": "device 'meta' cannot be used here",
    "show digits/cut-mixmo --dataset folder:mine": "data/mine",
    "show digits/cut-mixmo --r inf": "it is written .inf",
    "show digits/cut-mixmo --precision fp16": "expected fp32 or bf16, got fp16",
    "show digits/cut-mixmo --decay 0.5": "decay: expected a list such as [0.5, 0.75], got 0.5",
    "train digits/cut-mixmo": "the following arguments are required: --out",
    "train": "the following arguments are required: recipe, --out",
    "bench digits/cut-mixmo --seconds .inf": "both must be positive and finite",
    "plot masks --draw 1180591620717411303424": "--draw 1180591620717411303424; take a number from 0",
    "train digits/cut-mixmo --out huge --width 3000": "wrn10_3000 with 2 members on 64 images of 8x8 needs more",
    "train digits/cut-mixmo --out huge --width 1000000000000": "wrn10_1000000000000 need more than can be counted",
    "train digits/cut-mixmo --out huge --width 99999999999999999999": "need more than can be counted",
    "train digits/cut-mixmo --out huge --depth 6000004": "take at most 1996",
    "train digits/cut-mixmo --out huge --members 10000": "members = 10000; take at most 1000",
    "train digits/cut-mixmo --out long --minutes 1e300": "minutes = 1e+300; take at most 527040, a year",
    "train digits/cut-mixmo --out steep --r 0.001": "r = 0.001; the root of the loss weights must be 0.1 or more",
    "train digits/cut-mixmo --out=": "--out= is empty; give a value",
    "train digits/cut-mixmo --out huge --batch_size 1000000000": "take a smaller batch_size",
    "bench digits/cut-mixmo --batch_size 1000000000": "take a smaller batch_size",
    "reproduce --list --gpus-per-run -1": "--gpus-per-run -1.0; it cannot be negative",
    "reproduce --list --cpus-per-run .nan": "--cpus-per-run nan; it cannot be negative",
    "reproduce masks --gpus-per-run 0.5": "--gpus-per-run 0.5 is for runs that Ray shares out; give --ray auto too",
}


@pytest.mark.parametrize("line", REFUSED)
def test_refused_in_one_sentence(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mixmo.utils.memory._physical", lambda: 2**36)
    assert main(line.split()) == 2
    assert not list(tmp_path.iterdir())
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    assert REFUSED[line] in said


def test_nothing_given_for_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "digits/cut-mixmo", "--width", ""]) == 2
    assert "width: expected int, got nothing" in capsys.readouterr().err


def test_a_path_from_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "taken").write_text("")
    assert f"{tmp_path / 'taken'} exists already" in said("train", "digits/cut-mixmo", "--out=~/taken")


def test_an_empty_path_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits/cut-mixmo", "--epochs", "1", "--out", ""]) == 2
    assert "'' is empty; give a value" in capsys.readouterr().err
    with pytest.raises(UserError, match="out = ''; give a path"):
        train(named("digits/cut-mixmo"), "")
    assert not list(tmp_path.iterdir())


def test_help_says_what_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    for command, needed in (("bench", False), ("show", True)):
        assert main([command, "--help"]) == 0
        assert ("(required)" in capsys.readouterr().out) == needed


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: x"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_too_little_memory(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("mixmo.cli.list.main", fail)
    monkeypatch.setattr("mixmo.cli.train.main", fail)
    assert main(["list"]) == 2
    assert "not enough memory; end other programs" in capsys.readouterr().err
    assert main(["train"]) == 2
    assert "not enough memory; take a smaller batch_size" in capsys.readouterr().err


def test_another_error_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr("mixmo.cli.list.main", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        main(["list"])


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX")
def test_closed_streams() -> None:
    line = f"{sys.executable} -m mixmo list masks >&- 2>&-"
    assert subprocess.run(["sh", "-c", line], check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", [[], ["--version"], ["list", "masks"]])
def test_an_output_that_is_full(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched, open("/dev/full", "w") as full:  # closing it would fail once more
        patched.setattr("sys.stdout", full)
        assert main(words) == 2
    said = "mixmo: standard output or a file: No space left on device; check it and try again\n"
    assert capsys.readouterr().err == said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_messages_that_nobody_can_read_end_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log on a full disk, or a terminal that is gone: what is said on standard error is not what is asked for."""
    said = []

    def plan(_: object) -> None:
        for line in ("run 1 of 2", "run 2 of 2"):
            say(line)
            said.append(line)
        raise UserError("and so is the last sentence")

    monkeypatch.setattr("mixmo.cli.reproduce.main", plan)
    with monkeypatch.context() as patched, open("/dev/full", "w", buffering=1) as full:
        patched.setattr("sys.stderr", full)
        assert main(["reproduce"]) == 2
        assert sys.stderr is full
    assert said == ["run 1 of 2", "run 2 of 2"]


def test_a_warning_that_is_to_be_an_error(monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]) -> None:
    """As under `python -W error`."""

    def warn(_: object) -> None:
        warnings.warn("the training has not ended", stacklevel=1)

    monkeypatch.setattr("mixmo.cli.eval.main", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert said("eval") == "mixmo: the training has not ended\n"


@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_a_name_that_is_no_text(runs: list[Run], tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    folder = tmp_path / "images"
    folder.mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(os.path.join(os.fsencode(folder), b"a\xff.png"), "PNG")
    out = tmp_path / f"rows.{form}"
    assert main(["predict", str(runs[0].path), str(folder), "--format", form, "--out", str(out)]) == 0
    assert b"udcff.png" in out.read_bytes()


@pytest.mark.parametrize("line", ["train digits/cut-mixmo --out", "eval", "data check --data", "list"])
def test_an_argument_that_is_no_text(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*line.split(), os.fsdecode(os.fsencode(tmp_path) + b"/a\xff")]) == 2
    said = f"mixmo: '{tmp_path}/a\\udcff' is not written in UTF-8; rename it, or give another\n"
    assert capsys.readouterr().err == said
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")
def test_a_closed_terminal_stops_a_training_unless_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with stop_signals() as stopped:
            signal.raise_signal(signal.SIGHUP)
            assert stopped()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with stop_signals() as stopped:
            signal.raise_signal(signal.SIGHUP)
            assert not stopped()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_does_what_it_always_did() -> None:
    """Each of its own; and so does the first one after the training."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell has it ignored
    try:
        with stop_signals() as stopped:
            assert not stopped()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
        with stop_signals() as stopped:
            signal.raise_signal(signal.SIGTERM)
            assert stopped()
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before[signal.SIGINT])


def test_signals_are_left_to_the_owner_of_the_main_thread() -> None:
    def inside() -> bool:
        with stop_signals() as stopped:
            return stopped()

    with ThreadPoolExecutor() as pool:
        assert pool.submit(inside).result() is False


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(5, "Input/output error")])
def test_a_lost_terminal_does_not_end_a_training(error: OSError) -> None:
    class Gone:
        def write(self, _: str) -> None:
            raise error

        def flush(self) -> None:
            raise error

    console = Lasting(file=Gone())  # type: ignore[arg-type]
    console.print("epoch 1")
    console.print("epoch 2")
    assert console.quiet
