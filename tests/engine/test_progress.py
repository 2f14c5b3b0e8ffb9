"""Progress where there is no terminal: a line now and then, with rate and time left."""

import pytest

from mixmo.engine import progress
from mixmo.engine.progress import Progress
from mixmo.engine.schedule import Schedule
from mixmo.recipes import named

RECIPE = named("digits/cut-mixmo")


def test_a_long_epoch_is_not_silent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Progress(RECIPE, Schedule(RECIPE, 1437), 0, quiet=False) as bar:
        for step in range(1, 151):
            now[0] += 1.0
            bar.step(step)
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 2
    assert lines[0] == "epoch 2/30  step 60/1320  64 images/s  21:00 left"
    assert lines[1].startswith("epoch 3/30  step 120/1320")  # 44 steps each, also where no epoch between was scored


def test_compilation_in_the_first_step_is_no_measure_of_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Progress(RECIPE, Schedule(RECIPE, 1437), 120, quiet=False) as bar:
        for step, seconds in ((121, 150.0), (122, 29.0), (123, 31.0)):
            now[0] += seconds
            bar.step(step)
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines == ["epoch 3/30  step 121/1320", "epoch 3/30  step 123/1320  2.1 images/s  9:58:30 left"]


def test_quiet_is_silent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    with Progress(RECIPE, Schedule(RECIPE, 1437), 0, quiet=True) as bar:
        bar.step(1)
    assert capsys.readouterr().err == ""


def test_a_bar_ends_at_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that come faster than the bar is drawn are shown at the end."""
    with Progress(RECIPE, Schedule(RECIPE, 1437), 0, quiet=False) as bar:
        bar.live = True
        for step in range(1, 23):
            bar.step(step)
    assert bar.bar.tasks[0].completed == 22


def test_the_last_step_is_of_the_last_epoch() -> None:
    bar = Progress(RECIPE, Schedule(RECIPE, 1437), 0, quiet=True)
    assert [bar.text(step) for step in (0, 1, 44, 45, 1320)] == [f"epoch {k}/30" for k in (1, 1, 1, 2, 30)]
    bar.epoch({"epoch": 30, "test": {"ensemble": {"top1": 0.5, "nll": 1.0}}})
    assert bar.text(1320) == "epoch 30/30  top1 50.00  nll 1.000"
