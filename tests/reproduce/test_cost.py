"""What the tables cost: the model of a step against the rates it stands for, and the list that shows it."""

import re
from pathlib import Path

import pytest
import torch

from mixmo import paper
from mixmo.cli import main
from mixmo.engine.estimate import Estimate
from mixmo.recipes import named
from mixmo.reproduce.cost import MEASURED, h200, run_seconds, speed_of
from mixmo.reproduce.scores import size_of


def test_the_model_gives_the_measured_rates() -> None:
    speed = h200()
    for operations, batch, rate in MEASURED:
        assert batch / (speed.step + batch * (speed.image + speed.operation * operations)) == pytest.approx(
            rate, rel=0.005
        )


def test_the_rates_are_those_of_the_benchmarks() -> None:
    text = next(parent for parent in Path(__file__).resolve().parents if (parent / "benchmarks").is_dir())
    results = (text / "benchmarks" / "RESULTS.md").read_text()
    assert all(f"{rate:,}" in results for _, _, rate in MEASURED)
    assert size_of(named("cifar100/cut-mixmo"))["multiply_adds"] == pytest.approx(MEASURED[0][0], rel=1e-4)
    assert size_of(named("cifar100/cut-mixmo").replace(width=4))["multiply_adds"] == pytest.approx(
        MEASURED[2][0], rel=1e-4
    )


def test_runs() -> None:
    """300 epochs of WRN-28-4 at batch 256: 6 minutes of steps, 2.5 of scoring; b = 4 takes four times the steps."""
    recipe = named("cifar100/vanilla").replace(width=4, batch_size=256, precision="bf16")
    steps = 300 * 195 * 256 / 41_785
    assert run_seconds(recipe, h200()) == pytest.approx(steps + 300 * 0.55 + 40, rel=0.03)
    longer = named("cifar100/cut-mixmo").replace(width=4, batch_size=256, precision="bf16", repetition=4)
    assert run_seconds(longer, h200()) - run_seconds(recipe, h200()) == pytest.approx(3 * steps, rel=0.02)
    assert run_seconds(recipe.replace(subnets=3), h200()) > 2 * run_seconds(recipe, h200())


def test_a_cpu_is_measured() -> None:
    speed = speed_of(torch.device("cpu"))
    recipe = named("digits/vanilla").replace(epochs=2, width=1)
    assert speed.measured
    assert run_seconds(named("cifar100/vanilla"), speed) > 1_000 * run_seconds(recipe, speed) > 0


def test_a_busy_cpu_does_not_make_wide_networks_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another process delays the smaller of the measured networks until it is as slow as the larger one."""
    monkeypatch.setattr("mixmo.reproduce.cost.estimate", lambda *_: Estimate("CPU", 1, 1, 1.0, 1.0))
    speed = speed_of(torch.device("cpu"))
    recipe = named("cifar100/vanilla").replace(batch_size=32)
    assert speed.seconds(recipe.replace(width=1)) == pytest.approx(1.0, rel=1.0)
    assert speed.seconds(recipe) > 50 * speed.seconds(recipe.replace(width=1)) / 2


def test_the_list_has_every_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixmo.cli.reproduce_.speed_of", lambda device: h200())
    assert main(["reproduce", "--list", "--scale", "hour", "--out", str(tmp_path), "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("scale hour")
    assert all(re.search(rf"^{name} ", text, re.MULTILINE) for name in [*paper.names(), "all"])
    assert (
        main(["reproduce", "p", "all", "--scale", "hour", "--dry-run", "--out", str(tmp_path), "--device", "cpu"]) == 0
    )
    assert "163 runs needed, 0 there, 163 to train" in capsys.readouterr().out
    assert re.search(r"^mixing +Table 2 +7 +0 +0 +\d", text, re.MULTILINE)
