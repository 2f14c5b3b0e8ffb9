"""Progress of a training: header, one line per epoch, a bar that fits 80 columns; plain lines without a terminal."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mixmo.data.types import Dataset
from mixmo.engine import Runtime, display, train
from mixmo.engine.display import Progress, header
from mixmo.engine.schedule import Schedule
from mixmo.recipes import Recipe, named
from mixmo.utils import progress
from mixmo.utils.progress import Work, bars, shown

RECIPE = named("digits/cut-mixmo")
RECORD = {
    "epoch": 1,
    "lr": 0.05,
    "seconds": 61.0,
    "train": {"loss": 2.0},
    "test": {"ensemble": {"top1": 0.5, "nll": 1}},
}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    for module in (progress, display):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(progress, "TICK", 1e6)  # nobody looks but the test
    return now


def training(done: int = 0) -> Progress:
    return Progress(Schedule(RECIPE, 1437), done)


def test_without_a_terminal_a_long_epoch_has_a_line_per_minute(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
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


def test_a_scored_epoch_has_a_line_at_once(capsys: pytest.CaptureFixture[str], now: list[float]) -> None:
    """And the line that would have come soon after does not."""
    with shown(), training(44) as work:
        assert work.board is not None
        now[0] += 9
        work.epoch(RECORD)
        now[0] += 59
        work.board.tick()
    assert capsys.readouterr().err == "epoch 1/30  loss 2.0000  Top1 50.00  NLL 1.0000  lr 0.05  time 1:01\n"


def test_the_first_step_is_not_counted_in_the_pace(capsys: pytest.CaptureFixture[str], now: list[float]) -> None:
    with shown(), training(120) as work:
        assert work.board is not None
        for step, seconds in ((121, 150.0), (122, 29.0), (123, 31.0)):
            now[0] += seconds
            work.step(step)
            work.board.tick()
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines == ["epoch 3/30  step 121/1320", "epoch 3/30  step 123/1320  2.1 images/s  9:58:30 left"]


def test_on_a_terminal_epochs_stay_and_bars_fit_80_columns(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    schedule = Schedule(RECIPE.replace(epochs=1200, batch_size=128, repetition=1), 100_000)
    with shown(), Progress(schedule, 781 * 1000) as work, Work("predicting test images", 10_000):
        assert work.board is not None
        for step in (0, 100):
            now[0] += 1.0
            work.step(781 * 1000 + step)
        drawn = bars(work.board.works, 80)
        work.epoch({**RECORD, "epoch": 1200, "seconds": 360_000.0})
    assert drawn[0].endswith("83 %  12,800 images/s  26:01 left")  # nothing is cut
    assert len(drawn) == 2
    line = "epoch 1200/1200  loss 2.0000  Top1 50.00  NLL 1.0000  lr 0.05  time 100:00:00"
    assert [text for text in terminal.getvalue().splitlines() if "Top1" in text] == [line]
    assert max(map(len, [*drawn, line])) <= 80


def test_a_stopped_training_reports_its_step(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(), training() as work:
        assert work.board is not None
        work.board.live = True
        for step in range(1, 23):
            work.step(step)
    assert capsys.readouterr().err.startswith("epoch 1/30  step 22/1320")


def test_the_last_step_is_of_the_last_epoch() -> None:
    def shown_as(done: int, step: int | None = None) -> str:
        work = training(done)
        if step is not None:
            work.step(step)
        return work.what()

    found = [shown_as(0), shown_as(0, 1), shown_as(0, 44), shown_as(44), shown_as(44, 45), shown_as(44, 1320)]
    assert [*found, shown_as(1320)] == [f"epoch {k}/30" for k in (1, 1, 1, 2, 2, 30, 30)]


def test_the_header_names_network_device_data_steps_and_folder(digits: Dataset) -> None:
    recipe = RECIPE.replace(validation=137)
    net = recipe.network(10, (1, 8, 8))
    lines = header(Schedule(recipe, 1300), digits, net, torch.device("cpu"), Path("runs/a"), 40)
    count = sum(parameter.numel() for parameter in net.parameters())
    assert lines == [
        f"network  wrn10_2, {count:,} parameters, 2 members",
        "device   cpu (1 thread), fp32",
        "data     digits: 1,300 training, 137 validation, 360 test images of 8x8, 10 classes",
        "steps    30 epochs of 40 steps with 64 images; 40 steps are done",
        "writes   runs/a",
    ]


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"model": "timm/test_resnet"}, "random weights"),
        ({"model": "timm/test_resnet", "pretrained": True}, "published weights, images normalised with mean 0.306"),
        ({"model": "timm/test_resnet", "pretrained": True, "weights": "a.pt"}, "a.pt, images normalised"),
        ({"model": "shop:make", "pretrained": True}, "weights that shop:make returns"),
    ],
)
def test_the_header_names_the_initial_weights_of_a_backbone(
    fields: dict[str, Any], start: str, digits: Dataset
) -> None:
    net = RECIPE.network(10, (1, 8, 8))
    schedule = Schedule(RECIPE.replace(**fields), 1437)
    lines = header(schedule, digits, net, torch.device("cpu"), Path("runs/a"), 0)
    assert lines[1].startswith(f"start    {start}")


def test_a_training_prints_plain_lines_and_nothing_if_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = RECIPE.replace(epochs=2, width=1, batch_size=512)
    train(recipe, tmp_path / "run", Runtime(device="cpu"))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.replace("\n", "").isprintable()  # no control characters
    assert [line.split()[0] for line in err.splitlines()] == [
        *("network", "device", "data", "steps", "writes"),
        *("epoch", "epoch"),
    ]
    train(recipe, tmp_path / "quiet", Runtime(device="cpu", quiet=True))
    assert capsys.readouterr() == ("", "")


def hints(recipe: Recipe, samples: int, digits: Dataset) -> list[str]:
    net = RECIPE.network(10, (1, 8, 8))
    lines = header(Schedule(recipe, samples), digits, net, torch.device("cpu"), Path("runs/a"), 0)
    return [line for line in lines if line.startswith("hint")]


@pytest.mark.parametrize(("repetition", "samples", "epochs"), [(1, 900, 60), (2, 900, 60), (1, 2600, None)])
@pytest.mark.parametrize(("pretrained", "what"), [(True, "fine-tuning"), (False, "random weights")])
def test_few_steps_of_fine_tuning_are_said(
    digits: Dataset, repetition: int, samples: int, epochs: int | None, pretrained: bool, what: str
) -> None:
    recipe = named("finetune/cut-mixmo").replace(dataset="digits", repetition=repetition, pretrained=pretrained)
    found = hints(recipe, samples, digits)
    assert len(found) == (epochs is not None)
    assert all(line.startswith(f"hint     few steps for {what}: --epochs {epochs} ") for line in found)


@pytest.mark.parametrize(("samples", "size"), [(43, 16), (160, None), (159, 32)])
def test_few_steps_per_epoch_suggest_a_smaller_batch(digits: Dataset, samples: int, size: int | None) -> None:
    """With b = 2, 32 images at a time."""
    recipe = named("finetune/cut-mixmo").replace(dataset="digits", pretrained=False, epochs=1000)
    images = digits.train._replace(images=digits.train.resident[: samples + samples // 9 + 1])
    few = digits._replace(train=images._replace(labels=images.labels[: len(images.images)]))
    samples = len(few.train.labels) - recipe.held_out(len(few.train.labels))
    found = hints(recipe, samples, few)
    assert found == ([f"hint     few steps per epoch for {samples} images: try --batch-size {size}"] if size else [])


def test_classes_without_test_images_are_named(digits: Dataset) -> None:
    rows = digits.test.labels < 8
    some = digits._replace(
        test=digits.test._replace(images=digits.test.resident[rows], labels=digits.test.labels[rows])
    )
    assert hints(RECIPE, 1437, some) == ["hint     no test image of class '8', '9': scores do not cover it"]


@pytest.mark.parametrize(("epochs", "warmup", "hinted"), [(2, 2.0, True), (2, 5.0, True), (3, 2.0, False)])
def test_a_warm_up_of_the_whole_training_is_said(digits: Dataset, epochs: int, warmup: float, hinted: bool) -> None:
    found = hints(RECIPE.replace(epochs=epochs, warmup=warmup), 1437, digits)
    whole = f"--warmup {warmup:g} takes the whole training, and the learning rate never falls"
    assert found == ([f"hint     {whole}: try --warmup {epochs / 10:g}"] if hinted else [])
