"""Two processes on the CPU, connected by gloo, against one."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

from mixmo import UserError
from mixmo.engine import Runtime, train
from mixmo.engine.distributed import World, lost_processes_named
from mixmo.engine.preflight import check_world
from mixmo.engine.schedule import Schedule
from mixmo.recipes import named
from mixmo.runs.directory import Run

SCRIPT = Path(__file__).with_name("two_processes.py")


def start(*arguments: str, seconds: float = 240, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, "--max-restarts", str(restarts), str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("two_processes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, script: ModuleType) -> Path:
    """A folder with what two processes found."""
    folder = tmp_path_factory.mktemp("both")
    for name, pattern in script.UNREADABLE.items():
        script.images(folder / name, pattern)
    done = start(str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "said").write_text(done.stderr)
    return folder


@pytest.mark.parametrize("name", ["cut-mixmo", "mimo", "augmented", "ghost"])
def test_two_processes_equal_one(both: Path, script: ModuleType, tmp_path: Path, name: str) -> None:
    """20 steps in float64, then the logits of the test set. Pixels and masks are float32: hence the last digits."""
    found = json.loads((both / "found.json").read_text())
    assert found["size"] == 2
    two, one = found["losses"][name], script.losses(script.RECIPES[name], tmp_path)
    assert two[:20] == pytest.approx(one[:20], rel=1e-7)
    assert two[20:] == pytest.approx(one[20:], abs=1e-5)


@pytest.mark.filterwarnings("ignore::mixmo.data.decode.SkippedImages")
@pytest.mark.parametrize(("name", "labels"), [("some", [0] * 3 + [1] * 3), ("part", [1] * 5)])
def test_each_process_leaves_out_what_it_cannot_read(
    both: Path, script: ModuleType, name: str, labels: list[int]
) -> None:
    """Also one that can read nothing of its part."""
    two, one = json.loads((both / "found.json").read_text())["predictions"][name], script.predictions(both / name)
    assert two["labels"] == one["labels"] == labels
    assert two["logits"] == pytest.approx(one["logits"], abs=1e-5)
    assert f"cannot be read and are skipped: {both / name / 'test' / 'cat' / '0.png'}" in (both / "said").read_text()


def test_nothing_to_score_is_an_error_of_all_processes(both: Path) -> None:
    assert "none of 10 images" in json.loads((both / "found.json").read_text())["error"]


def test_batch_statistics_are_those_of_the_global_batch(both: Path) -> None:
    assert max(json.loads((both / "found.json").read_text())["normalisation"]) < 1e-9


def test_both_scale_the_gradients_of_fp8_alike(both: Path) -> None:
    """By the largest ones of both parts of the batch, which a checkpoint keeps."""
    first, second = json.loads((both / "found.json").read_text())["maxima"]
    assert len(first) > 2
    assert first == second


def test_resume_with_another_number_of_processes(
    both: Path, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes took 30 steps; one goes on. In float64, as above."""
    monkeypatch.setattr("mixmo.engine.trainer.fresh_network", script.double)
    recipe = script.RECIPES["cut-mixmo"].replace(epochs=2)
    resumed = train(recipe, both / "run", Runtime(device="cpu", quiet=True), resume=True)
    whole = train(recipe, tmp_path / "whole", Runtime(device="cpu", quiet=True))
    for two, one in zip(resumed.read_metrics(), whole.read_metrics(), strict=True):
        assert two["train"]["loss"] == pytest.approx(one["train"]["loss"], rel=1e-6)
    assert resumed.read_environment()["processes"] == 1


def test_a_step_that_is_nan_in_one_process_is_skipped_in_both(both: Path) -> None:
    """The gradients are averaged, so that both know; the checkpoint after it has finite weights."""
    state = json.loads((both / "skipped" / "checkpoints" / "00000014" / "state.json").read_text())
    assert state["meter"][2:] == [1, 3]
    assert json.loads((both / "skipped" / "nonfinite.json").read_text())["step"] == 12


def test_a_checkpoint_has_the_statistics_of_all_ghost_batches(both: Path, script: ModuleType, tmp_path: Path) -> None:
    """Of the network and of its average, not only those that the writing process has seen."""
    one = train(script.RECIPES["ghost"].replace(average=0.5), tmp_path / "one", script.RUNTIME, until=10).path
    for name in ("weights", "average"):
        ours, whole = (
            load_file(path / "checkpoints" / "00000010" / f"{name}.safetensors") for path in (both / "ghost", one)
        )
        statistics = [key for key in whole if "running" in key]
        assert statistics
        for key in statistics:
            torch.testing.assert_close(ours[key], whole[key], rtol=1e-3, atol=1e-4)


def test_an_epoch_that_they_could_not_score_is_saved(both: Path, script: ModuleType) -> None:
    """All of them know where it ended; whoever goes on scores it first."""
    recipe = script.RECIPES["ghost"].replace(epochs=2)
    steps = Schedule(recipe, 1437).steps_per_epoch
    assert [path.name for path in (both / "unscored" / "checkpoints").glob("0*")] == [f"{steps:08d}"]
    run = train(recipe, both / "unscored", script.RUNTIME, resume=True, until=steps)
    assert [line["epoch"] for line in run.read_metrics()] == [1]


def test_a_lost_process_is_named_and_torchrun_resumes_the_run(script: ModuleType, tmp_path: Path) -> None:
    """With --max-restarts, by the same command."""
    done = start(str(tmp_path), "lose", restarts=1)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "process 1 of this training has ended or does not respond" in done.stderr
    assert re.search(r"the checkpoint of step \d+ is complete: restart all processes with --resume", done.stderr)
    assert re.search(r"\d+ steps are done", done.stderr)  # it did not begin anew
    assert Run.open(tmp_path / "run").is_finished()


def test_one_of_several_ends_with_its_status_and_not_as_python_does(tmp_path: Path) -> None:
    """What is registered for the end is done, and what is printed arrives; nothing after it could abort the process."""
    script = f"""
import atexit, sys
import torch.distributed as dist
class Abort:
    def __del__(self): print("Python ends", flush=True)
kept, sys.argv = Abort(), ["mixmo", "train", "nonsense", "--out", "run"]
dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
atexit.register(print, "registered")
from mixmo.cli.app import command
command()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "registered\n")
    assert "nonsense" in done.stderr


def test_only_errors_of_the_connection_mean_a_lost_process(tmp_path: Path) -> None:
    class Two(World):
        size = 2

        def silent(self) -> list[int]:
            return [1]

    closed = RuntimeError("[/a/gloo/pair.cc:537] Connection closed by peer [::1]:25510. GLHF!")
    named = (
        r"process 1 .* does not respond \(Connection closed by peer \[::1\]:25510\); no checkpoint exists: restart all"
    )
    with pytest.raises(UserError, match=named), lost_processes_named(Two(), tmp_path):
        raise closed
    for world, error in ((Two(), RuntimeError("shapes differ")), (World(), closed)):
        with pytest.raises(RuntimeError, match=re.escape(str(error))), lost_processes_named(world, tmp_path):
            raise error


class Three(World):
    size = 3


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ("digits/cut-mixmo", "batch_size"),
        ("digits/manifold-mixup", "one device"),
        ("digits/gradaug", "one device"),
    ],
)
def test_batches_that_cannot_be_divided_are_rejected(recipe: str, sentence: str) -> None:
    chosen = named(recipe)
    if chosen.members == 1:
        chosen = chosen.replace(batch_size=63)
    with pytest.raises(UserError, match=sentence):
        check_world(chosen, Three())


def test_parts_cover_everything_once() -> None:
    for count in (1, 2, 5, 6, 7, 10_000):
        parts = []
        for rank in range(3):
            world = Three()
            world.rank = rank
            parts.append(torch.arange(count)[world.part(count)])
        assert torch.equal(torch.cat(parts), torch.arange(count))
