"""Progress of a training where there is no terminal: a line now and then, with rate and time left."""

import pytest

from mixmo.engine.display import Progress
from mixmo.engine.schedule import Schedule
from mixmo.recipes import named
from mixmo.utils import progress
from mixmo.utils.progress import shown

RECIPE = named("digits/cut-mixmo")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "TICK", 1e6)  # nobody looks but the test
    return now


def training(done: int = 0) -> Progress:
    return Progress(RECIPE, Schedule(RECIPE, 1437), done)


def test_a_long_epoch_is_not_silent(capsys: pytest.CaptureFixture[str], now: list[float]) -> None:
    with shown(), training() as work:
        assert work.board is not None
        for step in range(1, 151):
            now[0] += 1.0
            work.step(step)
            work.board.tick()
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 3
    assert lines[0] == "epoch 1/30  step 10/1320  64 images/s  21:50 left"
    assert lines[1] == "epoch 2/30  step 70/1320  64 images/s  20:50 left"
    assert lines[2].startswith("epoch 3/30  step 130/1320")  # 44 steps each, also where no epoch between was scored


def test_an_epoch_is_told_at_once(capsys: pytest.CaptureFixture[str], now: list[float]) -> None:
    """And the line that would have come soon after does not."""
    with shown(), training(44) as work:
        assert work.board is not None
        scores = {"top1": 0.5, "nll": 1.0, "nllc": 0.9}
        now[0] += 9
        work.epoch({"epoch": 1, "step": 44, "train": {"loss": 2.0}, "test": {"ensemble": scores}})
        now[0] += 59
        work.board.tick()
    assert capsys.readouterr().err == "epoch 1/30  loss 2.0000  top1 50.00  nll 1.0000  nllc 0.9000\n"


def test_compilation_in_the_first_step_is_no_measure_of_the_others(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    with shown(), training(120) as work:
        assert work.board is not None
        for step, seconds in ((121, 150.0), (122, 29.0), (123, 31.0)):
            now[0] += seconds
            work.step(step)
            work.board.tick()
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines == ["epoch 3/30  step 121/1320", "epoch 3/30  step 123/1320  2.1 images/s  9:58:30 left"]


def test_a_bar_leaves_where_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(), training() as work:
        assert work.board is not None
        work.board.live = True
        for step in range(1, 23):
            work.step(step)
    assert capsys.readouterr().err.startswith("epoch 1/30  step 22/1320  ")


def test_the_last_step_is_of_the_last_epoch() -> None:
    def told(done: int, step: int | None = None) -> str:
        work = training(done)
        if step is not None:
            work.step(step)
        return work.what()

    assert [told(0), told(0, 1), told(0, 44), told(44), told(44, 45), told(44, 1320), told(1320)] == [
        f"epoch {k}/30" for k in (1, 1, 1, 2, 2, 30, 30)
    ]
    work = training(1320)
    work.epoch({"epoch": 30, "test": {"ensemble": {"top1": 0.5, "nll": 1.0}}})
    assert work.what() == "epoch 30/30  top1 50.00  nll 1.000"
