"""Training end to end on the digits: the same from run to run, stopped anywhere, resumed to the last bit."""

import copy
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import safetensors.torch
import torch

from helpers import assert_same, limited
from mixmo import UserError
from mixmo.data.types import Dataset, Split
from mixmo.engine import Runtime, train
from mixmo.engine.batch import Batches, Now
from mixmo.engine.preflight import check_memory
from mixmo.engine.schedule import Schedule
from mixmo.engine.scoring import Scored, Scorer
from mixmo.engine.source import Samples, each_step, hold_out, plan
from mixmo.engine.step import Step
from mixmo.engine.trainer import Trainer
from mixmo.engine.training import warn_if_useless
from mixmo.evaluation.run_scores import score_runs
from mixmo.inference.predict import predict_split
from mixmo.metrics.logits import LabelledLogits
from mixmo.metrics.report import evaluate
from mixmo.mixing.loss import loss
from mixmo.models import FAMILIES, Network, Parts, multiply_adds, training_bytes
from mixmo.recipes import named
from mixmo.runs.checkpoint import Snapshot
from mixmo.runs.directory import Run
from mixmo.runs.lock import claim
from mixmo.runs.network import load_network
from mixmo.utils import memory
from mixmo.utils.signals import Stopped

RUNTIME = Runtime(device="cpu", quiet=True, save_seconds=1.0)
SMALL = named("digits/cut-mixmo").replace(epochs=4, width=1, batch_size=128, schedule="step", decay=(0.5, 0.75))
STEPS = 22  # an epoch of SMALL


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """SMALL, trained without a stop."""
    return train(SMALL, tmp_path_factory.mktemp("runs") / "whole", RUNTIME)


@pytest.fixture(scope="module")
def first_epoch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(SMALL, tmp_path_factory.mktemp("runs") / "first", RUNTIME, until=STEPS).path


@pytest.fixture
def begun(first_epoch: Path, tmp_path: Path) -> Path:
    """SMALL after its first epoch, to go on with."""
    return shutil.copytree(first_epoch, tmp_path / "run")


# Inside the first epoch, at its end, exactly at the first decay, inside an epoch after it, after the last step.
@pytest.mark.parametrize("stop", [5, STEPS, 2 * STEPS, 3 * STEPS + 7, 4 * STEPS])
def test_resume_gives_identical_weights(finished: Run, tmp_path: Path, stop: int) -> None:
    train(SMALL, tmp_path / "run", RUNTIME, until=stop)
    if stop < 4 * STEPS:
        assert not Run.open(tmp_path / "run").is_finished()
    assert_same(train(SMALL, tmp_path / "run", RUNTIME, resume=True), finished)


def test_checkpoints_inside_an_epoch_change_nothing(finished: Run, tmp_path: Path) -> None:
    """One after every step or so, as in epochs that take hours."""
    busy = Runtime(device="cpu", quiet=True, save_seconds=0.001)
    assert_same(train(SMALL, tmp_path / "run", busy), finished)


def test_a_diverged_training_raises_an_error_and_saves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="diverged"):
        train(SMALL.replace(lr=1e18, warmup=0.0), tmp_path / "run", RUNTIME)
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_a_diverged_training_is_not_saved_when_images_cannot_be_read(
    begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint from before is not replaced by one of weights that are none."""

    def lost(*given: Any) -> Iterator[Samples]:
        yield from itertools.islice(each_step(*given), 2)
        raise UserError("the images cannot be read")

    monkeypatch.setattr("mixmo.engine.trainer.each_step", lost)
    monkeypatch.setattr("mixmo.engine.schedule.Schedule.lr", lambda *_: 1e30)
    with pytest.raises(UserError, match="the images cannot be read"):
        train(SMALL, begun, RUNTIME, resume=True)
    assert [path.name for path in begun.glob("checkpoints/0*")] == [f"{STEPS:08d}"]


def test_a_last_step_that_diverges_is_not_saved(finished: Run, begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of its epoch does not show it, the outputs do; the earlier checkpoint stays."""
    with monkeypatch.context() as patch:
        usual = Schedule.lr
        patch.setattr(Schedule, "lr", lambda self, step: 1e38 if step == 2 * STEPS - 1 else usual(self, step))
        with pytest.raises(UserError, match="diverged"):
            train(SMALL, begun, replace(RUNTIME, save_seconds=1000), resume=True)
    assert_same(train(SMALL, begun, RUNTIME, resume=True), finished)


@pytest.mark.parametrize("lr", [math.inf, 1e8])
def test_a_diverged_step_is_not_saved_before_scoring(
    finished: Run, begun: Path, monkeypatch: pytest.MonkeyPatch, lr: float
) -> None:
    """Also if the weights are finite, but so large that the outputs are not."""
    with monkeypatch.context() as patch:
        usual = Schedule.lr
        patch.setattr(Schedule, "lr", lambda self, step: lr if step == STEPS + 3 else usual(self, step))
        with pytest.raises(UserError, match="diverged"):
            train(SMALL, begun, RUNTIME, resume=True, until=STEPS + 4)
    assert_same(train(SMALL, begun, RUNTIME, resume=True), finished)


def test_a_network_that_divides_by_the_deviation_of_an_image_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a user's own: that an image of one grey has no deviation says nothing about the weights."""

    class Standardised(torch.nn.Module):
        def forward(self, x_NCHW: torch.Tensor) -> torch.Tensor:
            centred = x_NCHW - x_NCHW.mean((1, 2, 3), keepdim=True)
            return centred / centred.std((1, 2, 3), keepdim=True)

    def own(depth: int, width: int) -> Parts:
        parts = FAMILIES["wrn"](depth, width)
        return parts._replace(encoder=lambda channels: torch.nn.Sequential(Standardised(), parts.encoder(channels)))

    monkeypatch.setitem(FAMILIES, "own", own)
    train(SMALL.replace(model="own"), tmp_path / "run", RUNTIME, until=2)
    assert [path.name for path in (tmp_path / "run").glob("checkpoints/0*")] == ["00000002"]


def test_a_training_that_runs_out_of_memory_can_be_resumed(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU that others use too: when the error is raised, no thread writes there any more."""
    fetch, step, steps = Snapshot.fetch, Step.__call__, []

    def slow(self: Snapshot) -> dict[str, torch.Tensor]:
        time.sleep(0.1 if len(steps) > STEPS else 0.0)
        return fetch(self)

    def exhausted(self: Step, *given: Any) -> None:
        steps.append(given)
        if len(steps) == STEPS + 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        step(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "fetch", slow)
        patch.setattr(Step, "__call__", exhausted)
        with pytest.raises(UserError, match="not enough memory"):
            train(SMALL, tmp_path / "run", replace(RUNTIME, save_seconds=0.001))
    assert not list((tmp_path / "run").rglob("*.tmp"))
    assert_same(train(SMALL, tmp_path / "run", RUNTIME, resume=True), finished)


def test_a_killed_training_can_be_resumed(finished: Run, tmp_path: Path) -> None:
    """SIGKILL: the newest checkpoint is whole, half-written ones and log lines past it are dropped."""
    out = tmp_path / "run"
    train(SMALL, out, RUNTIME, until=2 * STEPS)
    (out / "checkpoints" / ".00000050.tmp").mkdir()
    (out / "checkpoints" / ".00000050.tmp" / "weights.safetensors").write_bytes(b"half")
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "step": 66}\n{"epoch": 4, "st')
    assert_same(train(SMALL, out, RUNTIME, resume=True), finished)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_can_be_resumed(finished: Run, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    fields = ["--epochs", "4", "--width", "1", "--batch_size", "128", "--schedule", "step", "--decay", "[0.5,0.75]"]
    command = [
        sys.executable,
        "-m",
        "mixmo",
        "train",
        "digits/cut-mixmo",
        *fields,
        "--device",
        "cpu",
        "--out",
        str(out),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(number)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert_same(train(SMALL, out, RUNTIME, resume=True), finished)


def test_a_signal_in_the_last_epoch_ends_an_ensemble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network under way is finished, the next one not begun."""
    score = Trainer.score

    def interrupted(self: Trainer) -> dict[str, object]:
        signal.raise_signal(signal.SIGTERM)
        return score(self)

    recipe = SMALL.replace(networks=2, epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "score", interrupted)
        with pytest.raises(Stopped, match=r"finished before it could stop; --resume"):
            train(recipe, tmp_path / "run", RUNTIME)
    assert Run.open(tmp_path / "run" / "0").is_finished()
    assert not (tmp_path / "run" / "1").exists()
    assert train(recipe, tmp_path / "run", RUNTIME, resume=True).is_finished()


@pytest.mark.parametrize("cut", ['{"epoch": 2, "train": {"loss": 1.0}', '{"epoch": 2, "tr'])
def test_an_incomplete_last_line_of_metrics_is_dropped(tmp_path: Path, cut: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"epoch": 1}}\n{cut}')
    assert Run(tmp_path, SMALL).read_metrics() == [{"epoch": 1}]
    for text, number in ((f'{cut}\n{{"epoch": 1}}\n', 1), (f'{{"epoch": 1}}\n{cut}\n', 2)):  # what ends was whole once
        (tmp_path / "metrics.jsonl").write_text(text)
        with pytest.raises(UserError, match=rf"metrics.jsonl is damaged: line {number}"):
            Run(tmp_path, SMALL).read_metrics()


def test_a_full_disk_names_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UserError, match=r"metrics.jsonl could not be written \(No space left"):
        Run(tmp_path, SMALL).add_metrics({"epoch": 1})


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_is_no_run_is_rejected(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file"):
        with pytest.raises(UserError, match="not a run directory"):
            train(SMALL, out, RUNTIME, resume=resume)


def test_a_training_is_a_plain_loop(digits: Dataset, tmp_path: Path) -> None:
    """Each step written out: samples, draws, p and the rate of its time, SGD with Nesterov's momentum, the average."""
    small = digits._replace(train=Split(digits.train.images[:200], digits.train.labels[:200]))
    recipe = SMALL.replace(epochs=3, batch_size=64, repetition=2, decay=(0.7,), momentum=0.8, average=0.5)
    run = Run.create(tmp_path / "run", recipe)
    trainer = Trainer(recipe, small, run, RUNTIME, torch.device("cpu"))
    net, averaged = copy.deepcopy(trainer.net), copy.deepcopy(trainer.net).eval()
    trainer.run()
    batches = Batches(recipe, small, small.train)
    weights = list(net.parameters())
    velocities = [torch.zeros_like(weight) for weight in weights]
    step = 0
    for epoch, line in enumerate(run.read_metrics()):
        p, losses, right = recipe.mixer().chance((epoch + 1) / 3), [], []
        for samples in plan(recipe, 200, epoch).unique:
            rate = 0.2 / 2 * 64 / 128 * min(1.0, (step + 1) / 8) * (0.1 if epoch == 2 else 1.0)  # 8 = 2 b, for 200 / 64
            mix = batches.mix(batches.draw(samples, trainer.stream.at("step", step)), Now.at(p))
            logits = net(mix)
            value = loss(logits, mix)
            losses.append(value.item())
            right.append((logits.argmax(2) == mix.targets).double().mean().item())
            for weight, velocity, slope in zip(weights, velocities, torch.autograd.grad(value, weights), strict=True):
                decayed = slope + 6e-4 * weight.detach()
                velocity.mul_(0.8).add_(decayed)
                weight.data -= rate * (decayed + 0.8 * velocity)
            step += 1
            if step % 5 == 0:
                for into, now in zip(averaged.state_dict().values(), net.state_dict().values(), strict=True):
                    if into.is_floating_point():
                        into.copy_(math.exp(-5 / 3) * into + (1 - math.exp(-5 / 3)) * now)  # half an epoch is 3 steps
        assert (line["epoch"], line["step"], line["p"]) == (epoch + 1, step, pytest.approx(p))
        assert line["lr"] == pytest.approx(rate)
        assert line["train"] == pytest.approx({"loss": sum(losses) / 6, "top1": sum(right) / 6}, rel=1e-4)
        answers = predict_split(averaged, small, small.test).logits.mean(0).argmax(1)
        top1 = (answers == small.test.labels).double().mean().item()
        assert line["test"]["ensemble"]["top1"] == pytest.approx(top1, abs=0.005)
    assert step == 18
    for name, weight in safetensors.torch.load_file(run.path / "last.safetensors").items():
        torch.testing.assert_close(weight, averaged.state_dict()[name], rtol=1e-3, atol=1e-4)


def test_scores_from_logits_and_from_weights_agree(finished: Run) -> None:
    stored, again = score_runs([finished], "logits"), score_runs([finished], "weights")
    assert stored == again
    assert stored.reports["last"].to_dict() == finished.read_scores()["last"]


def test_several_runs_are_one_ensemble(finished: Run, tmp_path: Path) -> None:
    """N x M predictions: the mean of the logits by hand."""
    other = train(SMALL.replace(seed=1), tmp_path / "other", RUNTIME)
    scores = score_runs([finished, other])
    last = scores.reports["last"]
    by_hand = torch.cat([finished.read_logits()[0], other.read_logits()[0]]).double().mean(0)
    labels = finished.read_logits()[1]
    assert last.ensemble.top1 == pytest.approx((by_hand.argmax(1) == labels).double().mean().item())
    nll = -by_hand.log_softmax(1)[torch.arange(len(labels)), labels].mean().item()
    assert last.ensemble.nll == pytest.approx(nll)
    assert len(last.members) == 4
    assert scores.summary.parameters == 2 * finished.read_scores()["parameters"]


def test_training_learns(finished: Run) -> None:
    metrics = finished.read_metrics()
    assert metrics[-1]["train"]["loss"] < 0.8 * metrics[0]["train"]["loss"]
    assert metrics[-1]["test"]["ensemble"]["top1"] > 0.5


def test_best_epoch_is_the_best_of_the_log(finished: Run) -> None:
    tops = [line["test"]["ensemble"]["top1"] for line in finished.read_metrics()]
    assert finished.read_scores()["best_epoch"] == tops.index(max(tops)) + 1
    assert finished.read_scores()["best"]["ensemble"]["top1"] == pytest.approx(max(tops))


def scored(logits_MNK: torch.Tensor) -> Scored:
    labels = torch.arange(10)
    return Scored(logits_MNK, labels, evaluate(logits_MNK, labels))


def test_the_best_epoch_is_chosen_by_the_validation_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the test set would say the other one."""
    right, wrong = (scored(torch.eye(10).roll(by, 0)[None]) for by in (0, 1))
    asked = list[Split]()

    def score(self: Scorer, split: Split) -> Scored:
        asked.append(split)
        return right if (split is self.held_out) == (len(asked) <= 2) else wrong  # two an epoch

    monkeypatch.setattr(Scorer, "score", score)
    run = train(SMALL.replace(validation=137, epochs=2), tmp_path / "run", RUNTIME)
    assert [line["test"]["ensemble"]["top1"] for line in run.read_metrics()] == [0, 1]
    assert run.read_scores()["best_epoch"] == 1


def test_epochs_are_scored_in_training_precision_and_the_end_in_float32(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs are scored in the precision of the training, the end in float32; of the pixels that the network sees."""
    asked = list[tuple[int, str, int]]()

    def recorded(net: Network, dataset: Dataset, split: Split, precision: str, size: int, part: bool) -> LabelledLogits:
        asked.append((len(split.labels), precision, size))
        return predict_split(net, dataset, split, precision, size=size, part=part)

    monkeypatch.setattr("mixmo.engine.scoring.predict_split", recorded)
    recipe = SMALL.replace(epochs=1, precision="bf16", validation=137, size=6)
    run = train(recipe, tmp_path / "run", RUNTIME)
    assert asked == [(count, precision, 6) for precision in ("bf16", "fp32") for count in (360, 137)]
    scores, net = run.read_scores(), load_network(run)
    assert scores["parameters"] == sum(weight.numel() for weight in net.parameters())
    assert scores["multiply_adds"] == multiply_adds(net, (1, 6, 6))
    about = run.read_dataset()
    assert (about["size"], about["resize"]) == ([1, 6, 6], 8)
    stored, held = safetensors.torch.load_file(run.path / "logits-last.safetensors"), hold_out(digits.train, 137, 0)[1]
    assert held is not None
    assert torch.equal(stored["validation_labels"], held.labels)


@pytest.mark.parametrize("stop", [None, STEPS, 2 * STEPS])
def test_of_epochs_of_equal_top1_the_one_of_lowest_nll_is_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int | None
) -> None:
    """Also if the training was resumed between them."""
    epochs = iter([1.0, 3.0, 2.0])  # the sharper the right logits, the lower the NLL
    monkeypatch.setattr(Scorer, "score", lambda *_: scored(next(epochs) * torch.eye(10)[None]))
    monkeypatch.setattr(Scorer, "stored", lambda *_: {"logits": torch.eye(10)[None], "labels": torch.arange(10)})
    if stop is not None:
        train(SMALL.replace(epochs=3), tmp_path / "run", RUNTIME, until=stop)
    run = train(SMALL.replace(epochs=3), tmp_path / "run", RUNTIME, resume=True)
    assert {line["test"]["ensemble"]["top1"] for line in run.read_metrics()} == {1}
    assert run.read_scores()["best_epoch"] == 2


def test_of_equally_good_epochs_the_first_is_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = scored(torch.eye(10)[None])
    monkeypatch.setattr(Scorer, "score", lambda *_: same)
    run = train(SMALL.replace(epochs=2), tmp_path / "run", RUNTIME)
    assert run.read_scores()["best_epoch"] == 1
    best, last = (load_network(run, which).state_dict() for which in ("best", "last"))
    assert any(not torch.equal(best[name], last[name]) for name in best)


@pytest.mark.parametrize(("asked", "mode"), [(None, "eager"), (False, "eager"), (True, "compiled")])
def test_a_cpu_compiles_only_on_request(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool | None, mode: str
) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: print)  # another function than the eager one
    runtime = Runtime(device="cpu", quiet=True, compile=asked)
    assert Trainer(SMALL, digits, Run.create(tmp_path, SMALL), runtime, torch.device("cpu")).step.mode == mode


def test_a_run_directory_holds_recipe_data_environment_and_weights(finished: Run) -> None:
    assert finished.recipe == SMALL
    assert finished.read_dataset()["classes"] == list("0123456789")
    assert {"mixmo", "torch", "python", "device", "commit"} <= finished.read_environment().keys()
    assert load_network(finished).members == 2
    assert not list(finished.path.rglob("*.tmp"))


def test_validation_split_is_held_out(digits: Dataset, tmp_path: Path) -> None:
    rest, held = hold_out(digits.train, 137, seed=3)
    assert held is not None
    assert len(held.labels) == 137
    assert len(rest.labels) == 1300
    together = torch.cat((rest.images, held.images)).flatten(1)
    assert torch.equal(together.unique(dim=0), digits.train.images.flatten(1).unique(dim=0))
    run = train(SMALL.replace(validation=137, epochs=2), tmp_path / "run", RUNTIME)
    scores, lines = run.read_scores(), run.read_metrics()
    tops = [line["validation"]["ensemble"]["top1"] for line in lines]
    assert scores["best_by"] == "validation"
    assert scores["best_epoch"] == tops.index(max(tops)) + 1


def test_batches_repeat_and_augment_again(digits: Dataset) -> None:
    """Each copy of an image gets its own crop; each member its own order."""
    recipe = SMALL.replace(repetition=4, batch_size=16, crop=2)
    batches = Batches(recipe, digits, digits.train)
    unique = torch.tensor([10, 20, 30, 40])
    mix = batches.mix(batches.draw(unique, torch.Generator().manual_seed(0)), Now.at(0.5))
    assert mix.images.shape == (2, 16, 1, 8, 8)
    labels = digits.train.labels[unique].tolist()
    assert sorted(mix.targets[0].tolist()) == sorted(labels * 4) == sorted(mix.targets[1].tolist())
    assert len(mix.images[0].flatten(1).unique(dim=0)) > 4


def test_loggers_get_every_epoch_once_across_a_resume(tmp_path: Path) -> None:
    """Stopped and resumed: csv has every epoch once, another logger hears hyperparameters once and how it ended."""
    heard: list[tuple[str, object]] = []

    class Mine:
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            heard.append(("metrics", step))

        def log_hyperparams(self, params: dict[str, object]) -> None:
            heard.append(("width", params["width"]))

        def finalize(self, status: str) -> None:
            heard.append(("end", status))

    logged = Runtime(device="cpu", quiet=True, logger="csv, tensorboard")
    train(SMALL, tmp_path / "run", logged, until=3 * STEPS // 2, loggers=[Mine()])
    run = train(SMALL, tmp_path / "run", logged, resume=True, loggers=[Mine()])
    epochs = [("metrics", STEPS * k) for k in (1, 2, 3, 4)]
    assert heard == [("width", 1), epochs[0], ("end", "success"), *epochs[1:], ("end", "success")]
    table = next(run.path.glob("logs/csv/*.csv")).read_text().splitlines()
    assert len(table) == 1 + 4
    column = table[0].split(",").index("train/loss")
    losses = [float(row.split(",")[column]) for row in table[1:]]
    assert losses == pytest.approx([line["train"]["loss"] for line in run.read_metrics()])


def test_a_run_is_not_overwritten(finished: Run) -> None:
    before = sorted(path.name for path in finished.path.iterdir())
    with pytest.raises(UserError, match="--resume"):
        train(SMALL, finished.path, RUNTIME)
    assert sorted(path.name for path in finished.path.iterdir()) == before


def test_only_one_process_trains_a_run(tmp_path: Path) -> None:
    train(SMALL, tmp_path / "run", RUNTIME, until=3)
    with (
        claim(tmp_path / "run"),
        pytest.raises(UserError, match=r"another process is training \S+run; wait"),
    ):
        train(SMALL, tmp_path / "run", RUNTIME, resume=True)
    train(SMALL, tmp_path / "run", RUNTIME, resume=True, until=4)  # once the other has gone


def test_an_error_before_the_first_step_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    hopeless = Runtime(device="cpu", quiet=True, minutes=1e-6)
    with pytest.raises(UserError, match="too few minutes"):
        train(SMALL, out, hopeless)
    assert not out.exists()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "train_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(SMALL, out, RUNTIME)
    assert not out.exists()
    with pytest.raises(KeyboardInterrupt):  # as a whole
        train(SMALL.replace(networks=2), out, RUNTIME)
    assert not out.exists()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("shapes differ"), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (Stopped(), "interrupted"),
    ],
)
def test_an_error_after_the_first_step_keeps_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: str
) -> None:
    """And the loggers are told how it ended."""
    train(SMALL, tmp_path / "run", RUNTIME, until=3)
    logger = Mock()

    def broken(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_epoch", broken)
        with pytest.raises(type(error)):
            train(SMALL, tmp_path / "run", RUNTIME, resume=True, loggers=[logger])
    logger.finalize.assert_called_once_with(status)
    run = train(SMALL, tmp_path / "run", RUNTIME, resume=True, until=4)
    assert [path.name for path in run.path.glob("checkpoints/0*")] == ["00000004"]


def test_an_epoch_that_could_not_be_scored_is_scored_first(
    begun: Path, monkeypatch: pytest.MonkeyPatch, finished: Run
) -> None:
    """Nothing is lost, and it ends as it would have without the failure."""

    def unreadable(self: Scorer, split: Split) -> Scored:
        raise UserError("none of them can be read")

    with monkeypatch.context() as patched:
        patched.setattr(Scorer, "score", unreadable)
        with pytest.raises(UserError, match="none of them"):
            train(SMALL, begun, RUNTIME, resume=True)
    assert (begun / "checkpoints" / f"{2 * STEPS:08d}").is_dir()
    assert_same(train(SMALL, begun, RUNTIME, resume=True), finished)


def test_resume_rejects_another_recipe(finished: Run) -> None:
    with pytest.raises(UserError, match=r"another recipe \(width 1 -> 2"):
        train(SMALL.replace(width=2), finished.path, RUNTIME, resume=True)


def test_resume_rejects_an_edited_recipe_before_it_allocates_the_network(begun: Path) -> None:
    """Of width 120 it would take 8 GB."""
    wide = SMALL.replace(width=120)
    Run.open(begun).write_recipe(wide)
    with limited(), pytest.raises(UserError, match=r"checkpoint .* another architecture"):
        train(wide, begun, RUNTIME, resume=True)


def test_a_full_disk_keeps_the_earlier_checkpoint(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.read_bytes() for path in (begun / "checkpoints").rglob("*") if path.is_file()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("mixmo.runs.checkpoint.save_tensors", full)
        with pytest.raises(UserError, match=r"No space left on device.*--resume"):
            train(SMALL, begun, RUNTIME, resume=True, until=2 * STEPS)
    assert {path: path.read_bytes() for path in (begun / "checkpoints").rglob("*") if path.is_file()} == before
    train(SMALL, begun, RUNTIME, resume=True, until=2 * STEPS)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(SMALL, out, RUNTIME, until=5)
    weights = next((out / "checkpoints").glob("*/weights.safetensors"))
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UserError, match=r"weights\.safetensors is damaged"):
        train(SMALL, out, RUNTIME, resume=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"validation": 2000}, "validation"),
        ({"batch_size": 4096, "repetition": 2}, "batch_size"),
        ({"dataset": "digit"}, "digits"),
    ],
)
def test_recipes_that_do_not_fit_the_data_are_rejected(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        train(SMALL.replace(**changes), tmp_path / "run", RUNTIME)
    assert not (tmp_path / "run").exists()


def test_a_step_that_exceeds_the_memory_is_rejected(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is tried. Of several processes each holds its share of the batch."""
    needed = training_bytes(SMALL.network(10, (1, 8, 8)), (1, 8, 8), SMALL.batch_size // 2, "fp32")
    monkeypatch.setattr(memory, "total", lambda _: needed)
    with pytest.raises(UserError, match="needs more than"):
        train(SMALL, tmp_path / "run", RUNTIME)
    assert not (tmp_path / "run").exists()
    check_memory(SMALL.network(10, (1, 8, 8)), SMALL, digits.size, torch.device("cpu"), processes=2)


@pytest.mark.parametrize("option", [{"minutes": 0.0}, {"score_every": 0}, {"workers": -1}])
def test_options_must_be_positive(option: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(option))):
        Runtime(**option)


@pytest.mark.parametrize("device", ["cudaa", "cuda:99", "meta"])
def test_an_unknown_device_is_rejected(tmp_path: Path, device: str) -> None:
    with pytest.raises(UserError, match=device):
        train(SMALL, tmp_path / "run", Runtime(device=device))


def test_json_of_scores_is_plain(finished: Run) -> None:
    assert json.loads(json.dumps(score_runs([finished]).to_dict()))["last"]["ensemble"]["top1"] <= 1


def test_resume_rejects_a_changed_data_set(tmp_path: Path) -> None:
    train(SMALL, tmp_path / "run", RUNTIME, until=1)
    path = tmp_path / "run" / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"images": [1437, 359]}))
    with pytest.raises(UserError, match="359 -> 360"):
        train(SMALL, tmp_path / "run", RUNTIME, resume=True)


@pytest.mark.parametrize(
    ("nll", "nllc", "top1", "expected"),
    [
        (1e8, 2.2, 0.3, "training diverged: the last epoch has Top1 30.00 % and NLL 1e+08"),
        (2.5, 2.3, 0.12, "the network has learned nothing: the last epoch has Top1 12.00 % and NLLc 2.3,"),
        (2.5, 2.3, 0.3, None),
        (2.5, 2.2, 0.12, None),
    ],
)
def test_a_finished_training_that_learned_nothing_warns(
    nll: float, nllc: float, top1: float, expected: str | None
) -> None:
    """Naming the score that was tested; of few test images, NLLc can be high although the network has learned."""
    scores = {"nll": nll, "nllc": nllc, "top1": top1}
    run = Mock(recipe=SMALL, **{"read_metrics.return_value": [{"test": {"ensemble": scores}}]})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_if_useless(run, classes=10)
    assert len(caught) == (expected is not None)
    assert all(str(each.message).startswith(str(expected)) for each in caught)
