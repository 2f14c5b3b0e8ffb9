"""The number of epochs is fitted to a wall-clock budget; measuring changes nothing else."""

import copy
import itertools
import math
import time
from pathlib import Path

import pytest
import torch

from mixmo import UserError
from mixmo.data.types import Dataset, Split
from mixmo.engine import Runtime, train
from mixmo.engine.average import EVERY, Average
from mixmo.engine.budget import Pace, fit_epochs
from mixmo.engine.schedule import Schedule
from mixmo.engine.scoring import Scorer
from mixmo.engine.trainer import Trainer
from mixmo.models import create
from mixmo.recipes import Recipe, named
from mixmo.runs.checkpoint import State
from mixmo.runs.directory import Run

SMALL = named("digits/cut-mixmo").replace(epochs=300, width=1, batch_size=128, warmup=3.0)


def test_epochs_and_warmup_follow_the_time() -> None:
    schedule = Schedule(SMALL, 1437)
    pace = Pace(spent=10.0, step=0.1, scoring=0.3, finish=2.0)
    recipe = fit_epochs(SMALL, schedule, pace, 112.0)
    assert recipe.epochs == int(0.98 * 100 / (22 * 0.1 + 0.3)) == 39
    assert recipe.warmup == pytest.approx(3.0 * 39 / 300)
    with pytest.raises(UserError, match=r"too few minutes: 0 s are left .* take 15 s here; give 0\.5 minutes more"):
        fit_epochs(SMALL, schedule, pace, -13.0)
    assert fit_epochs(SMALL, schedule, pace, -13.0 + 0.5 * 60).epochs == 1


def test_seconds_do_not_follow_a_system_clock_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand, or by a time server."""
    true, jumps = time.time, itertools.cycle((0, -1e7, 1e7))
    monkeypatch.setattr(time, "time", lambda: true() + next(jumps))
    run = train(SMALL.replace(epochs=2, repetition=1), tmp_path / "run", Runtime(device="cpu", save_seconds=0.1))
    seconds = [line["seconds"] for line in run.read_metrics()]
    assert 0 < seconds[0] <= seconds[1] < 600
    assert all(0 < line["evaluation_seconds"] < 600 for line in run.read_metrics())
    assert capsys.readouterr().err.endswith("  0:00 left\n")


@pytest.mark.parametrize("batch_size", [796, 398])
def test_the_budget_counts_steps_and_scoring_as_they_will_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    """One step per epoch, or two; test and held-out images, every second epoch."""
    paces: list[Pace] = []

    def fit(recipe: Recipe, schedule: Schedule, pace: Pace, seconds: float) -> Recipe:
        paces.append(pace)
        return recipe

    def score(self: Scorer, split: Split) -> None:
        time.sleep(len(split.labels) / 1000)

    monkeypatch.setattr("mixmo.engine.trainer.fit_epochs", fit)
    monkeypatch.setattr(Scorer, "score", score)
    monkeypatch.setattr(Trainer, "read_meter", lambda self: time.sleep(0.2))
    monkeypatch.setattr(Trainer, "run", lambda self, until: None)
    runtime = Runtime(device="cpu", quiet=True, minutes=1.0, score_every=2)
    train(SMALL.replace(validation=640, batch_size=batch_size, repetition=1), tmp_path / "run", runtime)
    assert paces[0].step >= 0.2
    assert paces[0].scoring == pytest.approx((0.36 + 0.64) / 2, abs=0.1)


def test_measuring_restores_weights_momentum_and_meter(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixmo.engine.budget.SECONDS", 0.0)
    recipe = SMALL.replace(average=0.5, repetition=1)
    runtime = Runtime(device="cpu", quiet=True)
    trainer = Trainer(recipe, digits, Run.create(tmp_path / "run", recipe), runtime, torch.device("cpu"))
    assert trainer.average is not None
    nets = (trainer.net, trainer.average.net)
    before = copy.deepcopy([net.state_dict() for net in nets])
    trainer.fit(3600.0)
    for net, tensors in zip(nets, before, strict=True):
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in net.state_dict().items())
    assert not any(state["momentum_buffer"].any() for state in trainer.optimizer.state.values())
    assert not trainer.step.meter.any()
    assert trainer.state == State()


def test_networks_share_the_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[float] = []
    monkeypatch.setattr(Trainer, "fit", lambda self, seconds: given.append(seconds))
    monkeypatch.setattr(Trainer, "run", lambda self, until: None)
    train(SMALL.replace(networks=3), tmp_path / "run", Runtime(device="cpu", minutes=30.0))
    assert [round(seconds / 60) for seconds in given] == [10, 10, 10]
    assert all(seconds < 600 for seconds in given)  # loading has taken some
    assert capsys.readouterr().err == "".join(f"network {i} of 3\n" for i in (1, 2, 3))


def test_a_run_ends_within_its_budget(tmp_path: Path) -> None:
    began = time.monotonic()
    run = train(SMALL, tmp_path / "run", Runtime(device="cpu", quiet=True, minutes=0.1))
    took = time.monotonic() - began
    assert run.recipe.epochs < 300
    assert took < 2 * 6  # other processes may slow it down
    again = train(run.recipe, tmp_path / "again", Runtime(device="cpu", quiet=True))
    assert again.read_scores()["last"] == run.read_scores()["last"]


def test_resuming_keeps_what_was_fitted(tmp_path: Path) -> None:
    runtime = Runtime(device="cpu", quiet=True, minutes=0.25)
    epochs = train(SMALL, tmp_path / "run", runtime, until=5).recipe.epochs
    assert train(SMALL, tmp_path / "run", runtime, resume=True, until=6).recipe.epochs == epochs
    with pytest.raises(UserError, match="warmup"):
        train(SMALL, tmp_path / "run", Runtime(device="cpu", quiet=True), resume=True)


def test_average_follows_the_weights() -> None:
    """Against the plain recursion; early on it forgets the first weights sooner."""
    net = create("wrn10_1", classes=10, members=2, channels=1)
    average, horizon = Average(net, 100.0), 100.0
    expected = net.heads[0].weight.detach().double().clone()
    for step in range(1, 201):
        net.heads[0].weight.data.normal_(generator=torch.Generator().manual_seed(step))
        average.update(step)
        if step % EVERY == 0:
            keep = torch.tensor(-EVERY / min(horizon, 0.1 * step + EVERY), dtype=torch.float64).exp()
            expected = keep * expected + (1 - keep) * net.heads[0].weight.detach().double()
    assert torch.allclose(average.net.heads[0].weight.double(), expected, atol=1e-6)


def test_average_is_timms_after_its_first_steps() -> None:
    """ModelEmaV3 with the decay of the same horizon, also of the statistics of batch normalisation."""
    timm = pytest.importorskip("timm")
    net = create("wrn10_1", classes=10, members=2, channels=1)
    average, theirs = Average(net, 100.0), timm.utils.ModelEmaV3(net, decay=math.exp(-EVERY / 100.0))
    for step in range(1000, 1100):
        for tensor in net.state_dict().values():
            if tensor.is_floating_point():
                tensor.normal_(generator=torch.Generator().manual_seed(step))
        average.update(step)
        if step % EVERY == 0:
            theirs.update(net)
    for name, tensor in theirs.module.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(average.net.state_dict()[name], tensor)


def test_averaged_weights_are_scored_and_resumed(tmp_path: Path) -> None:
    recipe = SMALL.replace(epochs=3, average=0.5)
    runtime = Runtime(device="cpu", quiet=True)
    whole = train(recipe, tmp_path / "whole", runtime)
    train(recipe, tmp_path / "run", runtime, until=30)
    run = train(recipe, tmp_path / "run", runtime, resume=True)
    assert run.read_scores()["last"] == whole.read_scores()["last"]
    plain = train(recipe.replace(average=0.0), tmp_path / "plain", runtime)
    assert plain.read_metrics()[-1]["train"] == whole.read_metrics()[-1]["train"]
    assert plain.read_metrics()[-1]["test"] != whole.read_metrics()[-1]["test"]
