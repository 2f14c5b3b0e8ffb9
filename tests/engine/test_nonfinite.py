"""NaN and infinite losses: noticed, replayed, skipped or rolled back from."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from mixmo import UserError
from mixmo.data.types import Dataset
from mixmo.engine import Runtime, train
from mixmo.engine.batch import Batches
from mixmo.engine.divergence import DivergedError
from mixmo.engine.initialization import fresh_network
from mixmo.engine.optimizer import make_optimizer
from mixmo.engine.replay import replay
from mixmo.engine.source import plan
from mixmo.engine.step import Step
from mixmo.engine.training import _rolled_back
from mixmo.mixing.masks import MASKS, Mask, cut
from mixmo.recipes import Recipe, named
from mixmo.runs.checkpoint import Checkpoints
from mixmo.runs.directory import Run
from mixmo.storage.files import DiskError
from mixmo.utils.rng import Stream

RUNTIME = Runtime(device="cpu", quiet=True, save_seconds=1000.0)
STEPS = 22  # an epoch of SMALL
# With seed 0: step 12 of the first epoch, and step 16 after a rollback; seed 1 has none.
RARE, OFTEN = 0.00025, 1.0


@pytest.fixture(params=[RARE])
def recipe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Two epochs with a user-defined mask that is NaN for a share of all draws."""

    def faulty(kappa_N: Tensor, u_N2: Tensor, h: int, w: int) -> Tensor:
        return torch.where(u_N2[:, :1, None] < request.param, torch.nan, cut(kappa_N, u_N2, h, w))

    monkeypatch.setattr(MASKS, "_things", {**MASKS._things, "faulty": Mask(faulty, lambda h, w: 2, 1)})
    small = named("digits/cut-mixmo").replace(epochs=2, width=1, batch_size=128, mask="faulty")
    return small.replace(p=1.0)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "does not name a step"),
        ("[]", "does not name a step"),
        ('{"step": "2", "rollbacks": 0}', "does not name a step"),
        ('{"step": 2, "rollbacks": -1}', "does not name a step"),
        ('{"step": 1000000, "rollbacks": 0}', "the run has no step 1000000"),
        ("the loss was nan", "cannot be read"),
        (None, "only a run whose loss was NaN has it"),
    ],
)
def test_a_damaged_record_of_a_nan_loss_is_an_error(tmp_path: Path, content: str | None, problem: str) -> None:
    run = Run.create(tmp_path / "run", named("digits/cut-mixmo").replace(epochs=2, width=1, batch_size=128))
    if content is not None:
        (run.path / "nonfinite.json").write_text(content)
    with pytest.raises(UserError, match=rf"nonfinite\.json.* {problem}"):
        replay(run, RUNTIME)


def test_the_first_step_with_a_nan_loss_is_recorded_and_replayed(recipe: Recipe, tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(UserError, match=r"the loss is nan from step \d+ on .*--on-nan skip") as caught:
        train(recipe, path, RUNTIME)
    event = json.loads((path / "nonfinite.json").read_text())
    assert f"step {event['step']} on" in str(caught.value)
    step = event["step"] - 1
    assert event["images"] == plan(recipe, 1437, step // STEPS).unique[step % STEPS].tolist()
    files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    found = replay(path, RUNTIME)
    assert found is not None
    assert (found.step, found.images) == (event["step"], event["images"])
    assert found.loss != found.loss
    assert found.modules[0].startswith("core")  # the encoders come before the mask
    assert files == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_the_last_finite_checkpoint_stays_and_resumes_with_skipping(recipe: Recipe, tmp_path: Path) -> None:
    path, first = tmp_path / "run", 12
    train(recipe, path, RUNTIME, until=first - 1)
    with pytest.raises(UserError):
        train(recipe, path, RUNTIME, resume=True)
    assert json.loads((path / "nonfinite.json").read_text())["checkpoint"] == first - 1
    run = train(recipe, path, replace(RUNTIME, on_nan="skip"), resume=True)
    assert sum(line.get("skipped", 0) for line in run.read_metrics()) > 0
    assert run.read_scores()["last"]["ensemble"]["top1"] > 0.5
    whole = train(recipe, tmp_path / "whole", replace(RUNTIME, on_nan="skip"))
    assert [line["test"] for line in run.read_metrics()] == [line["test"] for line in whole.read_metrics()]


@pytest.mark.parametrize("changes", [{}, {"optimizer": "adamw", "lr": 1e-3}, {"precision": "fp16"}], ids=str)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("recipe", [OFTEN], indirect=True)
def test_a_skipped_step_changes_nothing(
    recipe: Recipe, digits: Dataset, changes: dict[str, object], parts: int
) -> None:
    """Neither weights, batch statistics nor momentum; also if it is the first step."""
    recipe = recipe.replace(**changes, grad_accum_steps=parts)
    net = fresh_network(recipe, digits)
    optimizer = make_optimizer(net, recipe)
    batches = Batches(recipe, digits, digits.train, slice(0, 128), net)
    step = Step(net, optimizer, batches, compiled=False, graphed=False, skip=True)
    stream = Stream(0, torch.device("cpu"))

    def take(number: int, chance: float) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Take a step, which the mask makes NaN with p = `chance`; return the network and the moments."""
        step(batches.draw(torch.arange(64), stream.at("step", number)), 0.1, chance)
        moments = [value.clone() for state in optimizer.state.values() for value in state.values()]
        return {name: value.clone() for name, value in net.state_dict().items()}, moments

    before = {name: value.clone() for name, value in net.state_dict().items()}
    after, moments = take(0, 1.0)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not any(moment.any() for moment in moments)
    good, moments = take(1, 0.0)
    again, same = take(2, 1.0)
    assert not all(torch.equal(good[name], before[name]) for name in before)
    assert all(torch.equal(again[name], good[name]) for name in good)
    assert all(map(torch.equal, moments, same))
    assert step.meter[2:].tolist() == [2, 3]
    assert step.meter[:2].isfinite().all()


@pytest.mark.parametrize("skip", [False, True])
def test_an_overflow_that_the_loss_scale_handles_is_no_nan(recipe: Recipe, digits: Dataset, skip: bool) -> None:
    """The gradients overflow, the loss does not: fp16 halves the scale, and nothing is counted as skipped."""
    recipe = recipe.replace(mask="cut", precision="fp16", batch_size=16)
    net = fresh_network(recipe, digits)
    batches = Batches(recipe, digits, digits.train, net=net)
    step = Step(net, make_optimizer(net, recipe), batches, compiled=False, graphed=False, skip=skip)
    before = [p.clone() for p in net.parameters()]
    assert step.scaler is not None
    step.scaler.scale.fill_(2.0**60)
    step(batches.draw(torch.arange(8), Stream(0, torch.device("cpu")).at("step")), 0.1, 1.0)
    assert step.scaler.scale.item() == 2.0**59
    assert all(map(torch.equal, before, net.parameters()))
    assert step.meter[2:].tolist() == [0, 0]
    assert step.meter[0].item() > 0


def test_gradients_that_overflow_at_every_scale_end_the_training(recipe: Recipe, tmp_path: Path) -> None:
    recipe = recipe.replace(mask="cut", precision="fp16", batch_size=512)
    path, last = tmp_path / "run", 2
    train(recipe, path, RUNTIME, until=last)
    state = path / "checkpoints" / f"{last:08d}" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "loss_scale": [1e-9, 0]}))
    (state.parent / "SHA256SUMS").unlink()
    with pytest.raises(UserError, match="overflow fp16 at every scale"):
        train(recipe, path, RUNTIME, resume=True)


@pytest.mark.parametrize("recipe", [OFTEN], indirect=True)
def test_an_epoch_of_skipped_steps_ends_the_training(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="all steps of epoch 1 were skipped"):
        train(recipe, tmp_path / "run", replace(RUNTIME, on_nan="skip"))


def test_a_full_disk_that_cannot_hold_the_record_does_not_end_the_training(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Run.write

    def full(run: Run, name: str, text: str) -> None:
        if name == "nonfinite.json":
            raise DiskError("nonfinite.json could not be written (No space left on device); free some space")
        write(run, name, text)

    monkeypatch.setattr(Run, "write", full)
    with pytest.warns(UserWarning, match=r"nonfinite.json could not be written.*training goes on"):
        run = train(recipe, tmp_path / "run", replace(RUNTIME, on_nan="skip"), until=STEPS)
    assert run.read_metrics()[0]["skipped"] == 1


def test_a_rollback_goes_on_from_the_last_checkpoint_with_other_draws(recipe: Recipe, tmp_path: Path) -> None:
    """Two networks; stopped and resumed after a rollback, it has the same result."""
    recipe, rolling = recipe.replace(networks=2), replace(RUNTIME, on_nan="rollback")
    whole = train(recipe, tmp_path / "whole", rolling)
    states = [Checkpoints(path / "checkpoints").state() for path in whole.network_paths()]
    assert [state and state.rollbacks for state in states] == [2, 0]
    train(recipe, tmp_path / "part", rolling, until=STEPS - 1)
    part = train(recipe, tmp_path / "part", rolling, resume=True)
    for one, two in zip(whole.open_networks(), part.open_networks(), strict=True):
        assert one.read_metrics()[0]["test"] == two.read_metrics()[0]["test"]


def test_processes_wait_for_the_checkpoint_that_they_roll_back_to() -> None:
    trainer = MagicMock()
    trainer.runtime.on_nan, trainer.state.rollbacks = "rollback", 0
    trainer.run.side_effect, trainer.checkpoints.latest.return_value = DivergedError("NaN"), None
    assert _rolled_back(trainer, None) == 1
    order = [call[0] for call in trainer.method_calls]
    assert order == ["run", "world.broadcast", "checkpoints.latest"]


def test_the_error_says_what_was_saved_and_what_was_not_tried() -> None:
    trainer = MagicMock()
    trainer.run.side_effect, trainer.state.rollbacks = DivergedError("NaN"), 3
    for on_nan, latest, expected in (
        ("stop", None, "NaN, or with --on-nan skip; nothing was saved"),
        ("skip", None, "NaN; nothing was saved"),
        ("stop", Path("00000012"), "NaN; the checkpoint of step 12 is kept, from which --resume with --on-nan skip"),
        ("rollback", Path("00000012"), "NaN; the checkpoint of step 12 is kept"),
    ):
        trainer.runtime.on_nan, trainer.checkpoints.latest.return_value = on_nan, latest
        with pytest.raises(DivergedError) as caught:
            _rolled_back(trainer, None)
        assert str(caught.value).removesuffix(" or rollback continues") == expected


@pytest.mark.parametrize("recipe", [OFTEN], indirect=True)
def test_a_training_that_is_always_nan_stops_after_three_rollbacks(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="the loss is nan from step 1 on"):
        train(recipe, tmp_path / "run", replace(RUNTIME, on_nan="rollback", quiet=False))
    said = capsys.readouterr().err
    assert "rollback 3 of 3" in said
    assert json.loads((tmp_path / "run" / "nonfinite.json").read_text())["rollbacks"] == 3
