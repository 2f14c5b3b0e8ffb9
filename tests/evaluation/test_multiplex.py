"""Multiplexed inference: accuracy and speed of several images per pass, from weights and data."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import mixmo
from mixmo.cli.app import main
from mixmo.data.types import Dataset
from mixmo.engine import Runtime, train
from mixmo.evaluation import multiplex
from mixmo.evaluation.multiplex import score_multiplexed
from mixmo.metrics.logits import LabelledLogits
from mixmo.models import multiply_adds
from mixmo.models.network import Network, Stages
from mixmo.recipes import named
from mixmo.runs.directory import Run
from mixmo.runs.network import load_network
from mixmo.utils.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three members, trained until each begins to read its own image."""
    recipe = named("digits/cut-mixmo").replace(members=3, width=1, epochs=3, batch_size=64, repetition=1)
    return train(recipe, tmp_path_factory.mktemp("multiplex") / "run", Runtime(device="cpu", quiet=True))


def test_rows_agree_with_stored_scores_and_with_predict(run: Run, digits: Dataset):
    found = score_multiplexed([run.path], "last", CPU)
    assert [row.images_per_pass for row in found.rows] == [1, 2, 3]
    assert [row.members_per_image for row in found.rows] == [3, 1.5, 1]
    first, _, last = found.rows
    stored = run.read_scores()
    assert first.scores.top1 == pytest.approx(stored["last"]["ensemble"]["top1"], abs=1e-6)
    assert last.multiply_adds == pytest.approx(stored["multiply_adds"] / 3)
    assert last.scores.top1 > 0.2  # ten classes: the heads do read their own
    assert first.scores.top1 >= last.scores.top1
    # The last row by hand: passes of three images in the order that was drawn.
    net = load_network(run)
    net.about = mixmo.load(run.path).about
    order = torch.randperm(360, generator=torch.Generator().manual_seed(0))
    by_hand = mixmo.predict(net, digits.test.images[order], images_per_pass=3, batch_size=300)
    right = (by_hand.labels == digits.test.labels[order]).double().mean().item()
    assert last.scores.top1 == pytest.approx(right, abs=1e-6)


def test_m_images_per_pass_are_m_times_as_fast(run: Run, monkeypatch: pytest.MonkeyPatch):
    """By a clock that counts the samples the core network sees."""
    clock, core = [0.0], Stages.forward

    def forward(self: Stages, x_NCHW: torch.Tensor, *args: object) -> torch.Tensor:
        clock[0] += len(x_NCHW)
        return core(self, x_NCHW, *args)

    monkeypatch.setattr(Stages, "forward", forward)
    monkeypatch.setattr(multiplex, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    rows = score_multiplexed([run.path], "last", CPU).rows
    assert [row.images_per_second for row in rows] == [1, 2, 3]


@pytest.mark.parametrize(("seconds", "calls"), [(1, 5), (3, 3), (60, 2)])
def test_speed_is_that_of_the_fastest_of_two_to_five_calls(
    seconds: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, given = [0.0], torch.zeros(1)

    def call() -> LabelledLogits:
        clock[0] += seconds * (1.5 if not made else 1)
        made.append(1)
        return LabelledLogits(given, given)

    made: list[int] = []
    monkeypatch.setattr(multiplex, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    result, best = multiplex._timed(call)
    assert (len(made), best) == (calls, seconds)
    assert result.logits is given


def test_table_agrees_with_json(run: Run, capsys: pytest.CaptureFixture[str]):
    assert main(["eval", str(run.path), "--multiplex", "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)["multiplexed"]
    assert main(["eval", str(run.path), "--multiplex", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    for row, cells in zip(found["rows"], rows, strict=True):
        assert cells[:2] == [str(row["images_per_pass"]), f"{100 * row['top1']:.2f}"]
        assert cells[2] == f"{100 * (row['top1'] - found['rows'][0]['top1']):+.2f}"
    assert rows[0][-2:] == ["x", "1.00"]
    assert "last epoch, 360 test images in random order" in text
    assert all(len(line) <= 80 for line in text.splitlines() if line[:1] == " ")


def test_networks_that_cannot_be_multiplexed_raise_an_error(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert [row.images_per_pass for row in score_multiplexed([runs[1].path], "last", CPU).rows] == [1]
    with pytest.raises(UserError, match="members"):
        score_multiplexed([run.path for run in runs], "last", CPU)
    shared = named("digits/cut-mixmo").replace(epochs=1, width=1, batch_size=256, encoders=1)
    run = train(shared, tmp_path / "run", Runtime(device="cpu", quiet=True))
    assert main(["eval", str(run.path), "--multiplex", "--device", "cpu"]) == 2
    assert "share one encoder" in capsys.readouterr().err


def test_a_saved_network_scores_as_its_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone and in an ensemble."""
    monkeypatch.setattr(multiplex, "_timed", lambda call: (call(), 1.0))
    mixmo.save_pretrained(mixmo.load(run.path), tmp_path / "saved")
    expected, found = (score_multiplexed([path], "last", CPU) for path in (run.path, tmp_path / "saved"))
    assert (expected.which, found.which, found.images) == ("last", None, 360)
    for row, same in zip(expected.rows, found.rows, strict=True):
        assert same[:3] == pytest.approx(row[:3])
        for key in ("top1", "nll", "ece"):
            assert getattr(same.scores, key) == pytest.approx(getattr(row.scores, key), rel=1e-4), key
    both = score_multiplexed([run.path, tmp_path / "saved"], "last", CPU).rows
    assert [row.scores.nll for row in both] == pytest.approx([row.scores.nll for row in found.rows], rel=1e-4)
    assert [row.multiply_adds for row in both] == [2 * row.multiply_adds for row in found.rows]
    assert main(["eval", str(tmp_path / "saved"), "--multiplex", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("360 test images in random order")


def test_labels_follow_the_class_names_of_the_network(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiplex, "_timed", lambda call: (call(), 1.0))
    net = mixmo.load(run.path)
    expected = score_multiplexed([run.path], "last", CPU).rows
    assert isinstance(net, Network)
    assert net.about is not None
    for head in net.heads:
        for layer in (layer for layer in head.modules() if isinstance(layer, nn.Linear)):
            layer.weight.data, layer.bias.data = layer.weight.flip(0), layer.bias.flip(0)
    about = dataclasses.replace(net.about, classes=net.about.classes[::-1])
    mixmo.save_pretrained(net, tmp_path / "saved", about=about)
    found = score_multiplexed([tmp_path / "saved"], "last", CPU).rows
    assert [row.scores.top1 for row in found] == pytest.approx([row.scores.top1 for row in expected])


def test_multiply_adds_of_a_wrapped_network_are_shown(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timm = pytest.importorskip("timm")
    monkeypatch.setattr(multiplex, "_timed", lambda call: (call(), 1.0))
    net = mixmo.wrap(timm.create_model("resnet10t", num_classes=10, in_chans=1), members=2, size=(1, 8, 8))
    about = mixmo.About((1, 8, 8), (0.5,), (0.5,), classes=digits.classes, dataset="digits")
    mixmo.save_pretrained(net, tmp_path / "saved", about=about)
    assert main(["eval", str(tmp_path / "saved"), "--multiplex", "--device", "cpu"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()[:1].isdigit()]
    cost = multiply_adds(net, (1, 8, 8)) / 1e9
    assert [(row[0], row[5]) for row in rows[:2]] == [("1", f"{cost:.4f}"), ("2", f"{cost / 2:.4f}")]
