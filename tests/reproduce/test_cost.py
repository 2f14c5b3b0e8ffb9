"""What the tables cost: the model of a step against the rates it stands for, and the list that shows it."""

import re
from pathlib import Path

import pytest
import torch

from mixmo.cli.app import main
from mixmo.engine.estimate import Estimate
from mixmo.models import multiply_adds, parameters
from mixmo.recipes import Recipe, named
from mixmo.recipes.protocols import FACTS, Facts
from mixmo.reproduce import paper
from mixmo.reproduce.cost import MEASURED, Speed, h200, run_seconds, speed_of
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


def test_a_backbone_has_a_cost_too() -> None:
    recipe = named("digits/cut-mixmo").replace(model="timm/test_resnet", size=32)
    net = recipe.network(10, (1, 32, 32))
    assert size_of(recipe) == {"parameters": parameters(net), "multiply_adds": multiply_adds(net, (1, 32, 32))}
    assert size_of(recipe.replace(members=1, p=0.0, seed=3))["parameters"] < size_of(recipe)["parameters"]
    assert run_seconds(recipe, h200()) > 0


def test_seconds_of_a_run_are_steps_scoring_and_compilation() -> None:
    """300 epochs of WRN-28-4 at batch 256: 6 minutes of steps, 2.5 of scoring; b = 4 takes four times the steps."""
    recipe = named("cifar100/vanilla").replace(width=4, batch_size=256, precision="bf16")
    steps = 300 * 195 * 256 / 41_785
    assert run_seconds(recipe, h200()) == pytest.approx(steps + 300 * 0.55 + 40, rel=0.03)
    longer = named("cifar100/cut-mixmo").replace(width=4, batch_size=256, precision="bf16", repetition=4)
    assert run_seconds(longer, h200()) - run_seconds(recipe, h200()) == pytest.approx(3 * steps, rel=0.02)
    assert run_seconds(recipe.replace(subnets=3), h200()) > 2 * run_seconds(recipe, h200())


def test_each_part_of_a_run_by_itself() -> None:
    """45,000 images are 703 batches of 64; 10,000 are predicted after each of two epochs, and scored in 0.5 s."""
    recipe = named("cifar100/vanilla").replace(epochs=2, validation=5_000, precision="bf16")
    none, images = Speed("none", 0.0, 0.0, 0.0, compiling=0.0), Speed("images", 0.0, 0.003, 0.0, compiling=0.0)
    assert run_seconds(recipe, none) == pytest.approx(2 * 0.5)
    assert run_seconds(recipe, none._replace(compiling=7.0)) == pytest.approx(2 * 0.5 + 7)
    assert run_seconds(recipe, none._replace(step=0.1)) == pytest.approx(2 * 0.5 + 2 * 703 * 0.1)
    assert run_seconds(recipe, images) == pytest.approx(2 * 0.5 + 2 * 703 * 64 * 0.003 + 2 * 10_000 * 0.001)
    operations = size_of(recipe)["multiply_adds"]
    assert run_seconds(recipe, images._replace(image=0.0, operation=0.003 / operations)) == pytest.approx(
        run_seconds(recipe, images)
    )
    for changes, factor in (({"precision": "fp32"}, 1.7), ({"subnets": 3}, 3.0), ({"saliency": "puzzle-mix"}, 2.0)):
        assert images.seconds(recipe.replace(**changes)) == pytest.approx(factor * 64 * 0.003)


def test_another_gpu_is_so_many_times_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its one measured step is, at every width; an H200 is not measured."""
    probe, gpu = named("cifar100/vanilla").replace(precision="bf16", batch_size=64), torch.device("cuda")

    def estimate(recipe: Recipe, facts: Facts, device: torch.device) -> Estimate:
        assert (recipe, facts, device) == (probe, FACTS["cifar100"], gpu)
        return Estimate("GPU", 1, 1, 1.0, 1.0)

    monkeypatch.setattr("mixmo.reproduce.cost.estimate", estimate)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A10")
    slow, fast = speed_of(gpu), h200()
    assert (slow.name, slow.measured, fast.measured) == ("NVIDIA A10", True, False)
    assert slow.seconds(probe) == pytest.approx(1.0)
    for recipe in (probe.replace(width=2), probe.replace(batch_size=512)):
        assert slow.seconds(recipe) / fast.seconds(recipe) == pytest.approx(1 / fast.seconds(probe))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200 NVL")
    assert speed_of(gpu) == fast._replace(name="NVIDIA H200 NVL")


def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixmo.engine.estimate.STEPS", 3)
    speed = speed_of(torch.device("cpu"))
    recipe = named("digits/vanilla").replace(epochs=2, width=1)
    assert speed.measured
    assert run_seconds(named("cifar100/vanilla"), speed) > 1_000 * run_seconds(recipe, speed) > 0


@pytest.mark.parametrize("small", [1.0, 0.1, 0.0])
def test_a_cpu_by_two_measured_steps(small: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The larger network's step is all multiply-adds; what the tiny one takes longer than its own is any step's.

    So wide networks are not cheap where another process delays the tiny one until it is as slow as the larger.
    """
    seconds = {"cifar100": 1.0, "digits": small}
    monkeypatch.setattr("mixmo.reproduce.cost.estimate", lambda r, *_: Estimate("CPU", 1, 1, seconds[r.dataset], 1.0))
    speed = speed_of(torch.device("cpu"))
    large, tiny = named("cifar100/vanilla").replace(batch_size=32, width=1), named("digits/vanilla")
    share = tiny.batch_size * size_of(tiny)["multiply_adds"] / (32 * size_of(large)["multiply_adds"])
    assert (speed.name, speed.image, speed.compiling, speed.measured) == ("CPU", 0.0, 0.0, True)
    assert speed.seconds(tiny) == pytest.approx(max(small, share))
    assert speed.seconds(large) == pytest.approx(1.0 + max(0.0, small - share))
    assert speed.seconds(large.replace(width=10)) > 50 * speed.seconds(large) / 2


def test_the_list_has_every_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixmo.cli.reproduce.speed_of", lambda device: h200())
    assert main(["reproduce", "--list", "--scale", "hour", "--out", str(tmp_path), "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("scale hour")
    assert all(re.search(rf"^{name} ", text, re.MULTILINE) for name in [*paper.names(), "all"])
    assert (
        main(["reproduce", "p", "all", "--scale", "hour", "--dry-run", "--out", str(tmp_path), "--device", "cpu"]) == 0
    )
    assert "163 runs needed, 0 there, 163 to train" in capsys.readouterr().out
    assert re.search(r"^mixing +Table 2 +0/7 +0 +\d", text, re.MULTILINE)
