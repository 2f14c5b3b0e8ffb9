"""Checkpoints are complete at any moment, bounded in size, and kept as configured."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from mixmo import UserError
from mixmo.engine import Runtime, train
from mixmo.engine.display import Progress
from mixmo.engine.trainer import Trainer
from mixmo.evaluation.run_scores import score_runs
from mixmo.models import Network, create
from mixmo.recipes import named
from mixmo.runs.checkpoint import Checkpoints, Snapshot, State, read_state
from mixmo.runs.directory import Run
from mixmo.runs.network import load_network
from mixmo.storage.weights import load_tensors

SMALL = named("digits/cut-mixmo").replace(epochs=3, width=1, batch_size=128, repetition=1)
STEPS = 11  # an epoch
SIZE = ["--width", "1", "--batch_size", "128", "--repetition", "1"]
COMMAND = ["train", "digits/cut-mixmo", *SIZE, "--epochs", "40", "--device", "cpu"]


def small() -> tuple[Network, torch.optim.SGD]:
    net = create("wrn10_1", classes=10, members=2, channels=1)
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """SMALL with ordinary files."""
    return train(SMALL, tmp_path_factory.mktemp("runs") / "whole", Runtime(device="cpu", quiet=True))


def test_process_killed_at_any_moment_leaves_a_loadable_checkpoint(tmp_path: Path) -> None:
    """SIGKILL while checkpoints are written as fast as they can; tests/faults kill at more moments."""
    out = tmp_path / "run"
    arguments = [sys.executable, "-m", "mixmo", *COMMAND, "--save_seconds", "0.0001", "--out", str(out)]
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 120
    while not list(out.glob("checkpoints/[0-9]*/state.json")) and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.4)
    process.send_signal(signal.SIGKILL)
    process.wait()
    checkpoints = Checkpoints(out / "checkpoints")
    state = checkpoints.load(*small())
    assert state is not None
    assert state.step > 0
    train(SMALL.replace(epochs=40), out, Runtime(device="cpu", quiet=True), resume=True, until=state.step + 1)


def test_checkpoint_is_written_in_the_background_and_unaffected_by_later_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written is what weights and state were when `save` was called, although they change while it is slow."""
    net, optimizer = small()
    fetch = Snapshot.fetch

    def slow(self: Snapshot) -> dict[str, torch.Tensor]:
        time.sleep(0.5)
        return fetch(self)

    monkeypatch.setattr(Snapshot, "fetch", slow)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state, checkpoints, began = State(step=1), Checkpoints(tmp_path), time.monotonic()
    checkpoints.save(state, net, optimizer, None)
    assert time.monotonic() - began < 0.4
    state.epochs_logged = 7
    for parameter in net.parameters():
        parameter.data.fill_(7.0)
    checkpoints.wait()
    stored = load_tensors(tmp_path / "00000001" / "weights.safetensors")
    assert all(torch.equal(stored[name], before[name]) for name in before)
    assert read_state(tmp_path / "00000001") == State(step=1)


@pytest.mark.parametrize("ruined", ["weights", "momentum"])
def test_weights_that_are_not_finite_replace_no_checkpoint(tmp_path: Path, ruined: str) -> None:
    """Also where no answer shows it: after a ReLU, minus infinity is zero."""
    (net, optimizer), checkpoints = small(), Checkpoints(tmp_path)
    parameter = next(net.parameters())
    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    checkpoints.save(State(step=1), net, optimizer, None)
    tensor = parameter.data if ruined == "weights" else optimizer.state[parameter]["momentum_buffer"]
    tensor[0] = -torch.inf
    checkpoints.save(State(step=2), net, optimizer, None)
    with pytest.raises(UserError, match="weights or momentum are NaN or infinite after step 2: training diverged"):
        checkpoints.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]


def test_error_in_the_background_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, optimizer = small()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(State(step=1), net, optimizer, None)
    checkpoints.wait()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mixmo.runs.checkpoint.save_tensors", full)
    checkpoints.save(State(step=2), net, optimizer, None)
    with pytest.raises(UserError, match=r"No space left on device.*--resume"):
        checkpoints.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]


def test_run_in_shards_resumes_to_the_same_scores(whole: Run, tmp_path: Path) -> None:
    runtime = Runtime(device="cpu", quiet=True, shard_mb=0.1)
    train(SMALL, tmp_path / "run", runtime, until=STEPS)
    assert list((tmp_path / "run" / "checkpoints").glob("*/weights-*-of-*.safetensors"))
    run = train(SMALL, tmp_path / "run", runtime, resume=True)
    assert run.read_scores()["last"] == whole.read_scores()["last"]
    assert score_runs([run], "weights").reports["last"] == score_runs([run]).reports["last"]
    assert not (run.path / "last.safetensors").exists()


def test_compact_files_have_half_the_size_and_their_own_scores(whole: Run, tmp_path: Path) -> None:
    runtime = Runtime(device="cpu", quiet=True, compact=True)
    train(SMALL, tmp_path / "run", runtime, until=STEPS)
    checkpoint = next((tmp_path / "run" / "checkpoints").glob("[0-9]*"))
    tensors = load_tensors(checkpoint / "weights.safetensors")
    kinds = {tensor.dtype for name, tensor in tensors.items() if tensor.dim() > 1}
    assert kinds == {torch.bfloat16}
    assert all(t.dtype != torch.bfloat16 for t in tensors.values() if t.dim() == 1)
    assert {t.dtype for t in load_tensors(checkpoint / "optimizer.safetensors").values() if t.dim() > 1} == kinds
    run = train(SMALL, tmp_path / "run", runtime, resume=True)
    assert score_runs([run], "weights").reports["last"] == score_runs([run]).reports["last"]
    sizes = [(r.path / "last.safetensors").stat().st_size for r in (run, whole)]
    assert sizes[0] < 0.56 * sizes[1]
    difference = [abs(r.read_metrics()[-1]["train"]["loss"]) for r in (run, whole)]
    assert difference[0] == pytest.approx(difference[1], rel=0.05)
    assert next(load_network(run).parameters()).dtype == torch.float32


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_checkpoint_of_every_kth_epoch_is_kept(tmp_path: Path, seconds: float) -> None:
    """Of many, and where no other is written."""
    runtime = Runtime(device="cpu", quiet=True, keep_every=2, save_seconds=seconds)
    train(SMALL.replace(epochs=5), tmp_path / "run", runtime)
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*"))
    assert kept == [f"{STEPS * epoch:08d}" for epoch in (2, 4, 5)]


@pytest.mark.parametrize(
    ("seconds", "epochs", "saved"),
    [(15.0, 3, [22, 33]), (0.45, 2, [5, 10, 11, 16, 21, 22, 22])],
)
def test_checkpoints_are_saved_after_so_many_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, epochs: int, saved: list[int]
) -> None:
    """Where a step takes a second and an epoch eleven: after an epoch, amid a long one, and at the end."""
    now, steps, step, save = 100.0, list[int](), Progress.step, Trainer.save

    def one_second(self: Progress, number: int) -> None:
        nonlocal now
        now += 1
        step(self, number)

    def counted(self: Trainer) -> None:
        steps.append(self.state.step)
        save(self)

    monkeypatch.setattr("mixmo.engine.trainer.time", Mock(monotonic=lambda: now))
    monkeypatch.setattr(Progress, "step", one_second)
    monkeypatch.setattr(Trainer, "save", counted)
    runtime = Runtime(device="cpu", quiet=True, save_seconds=seconds)
    run = train(SMALL.replace(epochs=epochs), tmp_path / "run", runtime)
    assert steps == saved
    assert [line["seconds"] for line in run.read_metrics()] == [11 * (epoch + 1) for epoch in range(epochs)]
    assert run.read_scores()["seconds"] == 11 * epochs


def test_kept_checkpoints_stay_and_can_be_resumed(tmp_path: Path) -> None:
    """Though a later training keeps none and the best epoch has moved on; half-written ones are swept away."""
    net, optimizer = small()
    best = net.state_dict()
    kept = Checkpoints(tmp_path, every=2)
    for step in (1, 2, 3):
        kept.save(State(step=step, best_step=step), net, optimizer, best)
    kept.wait()
    for left in (".00000002.tmp", ".00000005.tmp"):  # the second of the very step that is saved next
        (tmp_path / left).mkdir()
    later = Checkpoints(tmp_path)
    later.save(State(step=5, best_step=5), net, optimizer, best)
    later.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "00000002",
        "00000005",
        "best-00000002.safetensors",
        "best-00000005.safetensors",
    ]
    (tmp_path / "00000005").rename(tmp_path / "gone")
    state = later.load(net, optimizer)
    assert state is not None
    assert state.step == 2
    assert later.best(state) is not None


def test_checkpoint_of_the_same_step_is_never_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process killed while it saves the last step once more must not leave nothing."""
    net, optimizer = small()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(State(step=4), net, optimizer, None)
    checkpoints.wait()

    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(Path, "rename", killed)
    checkpoints.save(State(step=4), net, optimizer, None)
    checkpoints.wait()
    assert checkpoints.latest() == tmp_path / "00000004"


def test_checkpoint_to_keep_stays_if_the_process_is_killed_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the rename, nothing else may be needed for it to stay."""
    net, optimizer = small()
    checkpoints = Checkpoints(tmp_path, every=2)
    rename = Path.rename

    def killed(source: Path, target: Path) -> None:
        rename(source, target)
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        checkpoints.save(State(step=2), net, optimizer, None)
        with pytest.raises(RuntimeError, match="killed"):
            checkpoints.wait()
    checkpoints.save(State(step=3), net, optimizer, None)
    checkpoints.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000002", "00000003"]


def test_every_kth_epoch_is_scored(tmp_path: Path) -> None:
    """The last epoch is always scored; the training loss is that of all epochs since the last line."""
    whole = train(SMALL.replace(epochs=5), tmp_path / "whole", Runtime(device="cpu", quiet=True))
    few = Runtime(device="cpu", quiet=True, score_every=2)
    train(SMALL.replace(epochs=5), tmp_path / "few", few, until=3 * STEPS)
    run = train(SMALL.replace(epochs=5), tmp_path / "few", few, resume=True)
    lines, all_lines = run.read_metrics(), whole.read_metrics()
    assert [line["epoch"] for line in lines] == [2, 4, 5]
    assert lines[-1]["test"] == all_lines[-1]["test"]
    mean = (all_lines[2]["train"]["loss"] + all_lines[3]["train"]["loss"]) / 2
    assert lines[1]["train"]["loss"] == pytest.approx(mean)
    assert json.loads((run.path / "scores.json").read_text())["best_epoch"] in (2, 4, 5)
