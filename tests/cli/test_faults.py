"""Bad values, closed or full streams and too little memory: one sentence or the result, never a traceback."""

import io
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mixmo import UserError
from mixmo.cli.app import main
from mixmo.engine import Runtime, train
from mixmo.recipes import named
from mixmo.reproduce.execute import say
from mixmo.runs.directory import Run

FAULTS = {  # and the word that the error must have
    "bench digits/cut-mixmo --repeats 0": "--repeats",
    "show digits/cut-mixmo --device meta": "'meta'",
    "show digits/cut-mixmo --dataset mine": "mine",
    "train digits/cut-mixmo --out huge --width 3000": "width",
    "train digits/cut-mixmo --out huge --batch-size 1000000000": "batch_size",
    "bench digits/cut-mixmo --batch-size 1000000000": "batch_size",
    "train digits/cut-mixmo --out run --precision fp8 --device cpu": "fp8 needs",
    "bench digits/cut-mixmo --precision fp8 --device cpu": "fp8 needs",
    "reproduce best-ensembles --scale smoke --set precision=fp8 --out made --device cpu": "fp8 needs",
    "reproduce --list --gpus-per-run -1": "--gpus-per-run",
    "reproduce masks --gpus-per-run 0.5": "--ray",
}


@pytest.mark.parametrize("line", FAULTS)
def test_bad_values_are_one_sentence_and_write_nothing(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mixmo.utils.memory._physical", lambda: 2**36)
    assert FAULTS[line] in said(*line.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("eval", "loop"), ("report", "loop"), ("compare", "loop", "loop")])
def test_a_link_to_itself_is_one_sentence(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    assert "loop" in said(*words)


def test_a_run_is_not_written_where_it_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]
) -> None:
    """safetensors writes files whose names are not UTF-8, and cannot open them."""
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"run\xff")
    assert r"run\udcff is not UTF-8; rename" in said("train", "digits/cut-mixmo", "--out", name)
    assert not list(tmp_path.iterdir())


def test_empty_path_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "empty" in said("train", "digits/cut-mixmo", "--epochs", "1", "--out", "")
    assert "empty" in said("train", "digits/cut-mixmo", "--epochs", "1", "--out=")
    with pytest.raises(UserError, match="out"):
        train(named("digits/cut-mixmo"), "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: x"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_too_little_memory_is_one_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("mixmo.cli.list.main", fail)
    monkeypatch.setattr("mixmo.cli.train.main", fail)
    assert "--device cpu" in said("list")
    assert "smaller batch" in said("train")


def test_unexpected_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr("mixmo.cli.list.main", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        main(["list"])


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX")
def test_closed_streams_are_no_error() -> None:
    line = f"{sys.executable} -m mixmo list masks >&- 2>&-"
    assert subprocess.run(["sh", "-c", line], check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", [[], ["--version"], ["list", "masks"]])
def test_full_disk_below_standard_output_is_an_error(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched, open("/dev/full", "w") as full:  # closing it would fail once more
        patched.setattr("sys.stdout", full)
        assert main(words) == 2
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_full_disk_below_standard_error_ends_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []

    def plan(_: object) -> None:
        for line in ("run 1 of 2", "run 2 of 2"):
            say(line)
            said.append(line)
        raise UserError("the last sentence")

    monkeypatch.setattr("mixmo.cli.reproduce.main", plan)
    with monkeypatch.context() as patched, open("/dev/full", "w", buffering=1) as full:
        patched.setattr("sys.stderr", full)
        assert main(["reproduce"]) == 2
        assert sys.stderr is full
    assert said == ["run 1 of 2", "run 2 of 2"]


def test_warnings_as_errors_are_one_sentence(monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]) -> None:
    """As under `python -W error`."""

    def warn(_: object) -> None:
        warnings.warn("the training has not ended", stacklevel=1)

    monkeypatch.setattr("mixmo.cli.eval.main", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert said("eval") == "mixmo: the training has not ended\n"


@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_predict_takes_file_names_that_are_not_utf8(runs: list[Run], tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    folder = tmp_path / "images"
    folder.mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(os.path.join(os.fsencode(folder), b"a\xff.png"), "PNG")
    out = tmp_path / f"rows.{form}"
    assert main(["predict", str(runs[0].path), str(folder), "--format", form, "--out", str(out)]) == 0
    assert b"udcff.png" in out.read_bytes()


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(5, "Input/output error")])
def test_lost_terminal_does_not_end_training(error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise error

    monkeypatch.setattr("sys.stderr", Gone())
    recipe = named("digits/vanilla").replace(width=1, epochs=1, batch_size=512)
    assert train(recipe, tmp_path / "run", Runtime(device="cpu")).path.joinpath("scores.json").is_file()
