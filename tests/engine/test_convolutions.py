"""Training with kernels that are chosen: where they cannot run nothing changes, and where they can the losses agree."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mixmo import UserError, data
from mixmo.cli.app import main
from mixmo.engine import Runtime, convolutions, train
from mixmo.engine.convolutions import choose_kernels
from mixmo.engine.distributed import World
from mixmo.engine.initialization import fresh_network
from mixmo.engine.step_timer import StepTimer
from mixmo.kernels import ops, remembered
from mixmo.kernels.choice import Choice
from mixmo.kernels.layer import Conv3x3
from mixmo.kernels.shapes import Shape
from mixmo.models.cost import layer_shapes
from mixmo.recipes import named

CPU = torch.device("cpu")
RECIPE = named("digits/cut-mixmo").replace(width=1, batch_size=64, repetition=2, precision="bf16")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Shape, str]]:
    """Stand in for a GPU on which Triton wins every weight gradient; what it computes is torch's. Return the keys."""
    seen: list[tuple[Shape, str]] = []

    def choose(shape: Shape, direction: str, dtype: torch.dtype, device: torch.device) -> Choice:
        seen.append((shape, direction))
        return Choice("tile" if direction == "weight" else ops.CUDNN, 1.0, "tile", 0.5)

    compute: Callable[..., Tensor] = ops.compute
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(convolutions, "available", lambda _: True)
    monkeypatch.setattr(remembered, "environment", lambda _: "here")
    monkeypatch.setattr(remembered, "choose", choose)
    monkeypatch.setattr(ops, "compute", lambda direction, kernel, *rest: compute(direction, ops.CUDNN, *rest))
    return seen


def chosen(precision: str = "bf16") -> tuple[nn.Module, list[convolutions.Convolutions]]:
    net = fresh_network(RECIPE, data.load("digits"))
    return net, choose_kernels(net, (1, 8, 8), 64, precision, CPU, World())


def test_without_a_gpu_nothing_changes() -> None:
    net, found = chosen()
    assert found == []
    assert not any(isinstance(layer, Conv3x3) for layer in net.modules())


def test_float32_keeps_cudnn(measured: list[tuple[Shape, str]]) -> None:
    assert chosen("fp32")[1] == measured == []


def test_each_shape_and_direction_is_measured_once_and_remembered(measured: list[tuple[Shape, str]]) -> None:
    shapes = set(layer_shapes(fresh_network(RECIPE, data.load("digits")), (1, 8, 8), 64).values())
    net, found = chosen()
    assert len(measured) == 3 * len(shapes) == len(set(measured)) == len(found)
    assert sum(each.layers for each in found) == 3 * sum(isinstance(layer, Conv3x3) for layer in net.modules())
    again, second = chosen()
    assert second == found
    assert len(measured) == len(found)
    assert list(again.state_dict()) == list(fresh_network(RECIPE, data.load("digits")).state_dict())


def test_normalisations_that_a_relu_follows_take_the_kernels_too(
    measured: list[tuple[Shape, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses of some steps agree with those of torch's normalisation, up to rounding."""
    sums = pytest.importorskip("mixmo.kernels.channel_sums", reason="needs Triton", exc_type=ImportError)
    monkeypatch.setattr(sums, "LEAST", 0)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    timer = StepTimer(RECIPE, data.load("digits"), CPU, compiled=False, kernels="auto")
    norms = {name: layer for name, layer in timer.net.named_modules() if isinstance(layer, nn.BatchNorm2d)}
    assert all(vars(layer)["summed"][0] == 64 for layer in norms.values())
    plain = StepTimer(RECIPE, data.load("digits"), CPU, compiled=False, kernels="cudnn")
    for each in (timer, plain):
        for _ in range(3):
            each.next_step()
    found, expected = (each.step.meter[0] for each in (timer, plain))
    assert found != expected
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=0)


def test_what_fails_while_it_is_measured_leaves_cudnn(
    measured: list[tuple[Shape, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Choice:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(remembered, "choose", fail)
    with pytest.warns(RuntimeWarning, match=r"cannot be timed \(RuntimeError: no kernel image is available\)"):
        net, found = chosen()
    assert found == []
    assert not any(isinstance(layer, Conv3x3) for layer in net.modules())


def test_training_gives_the_same_losses(
    measured: list[tuple[Shape, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = RECIPE.replace(epochs=1, batch_size=256)
    losses = []
    for kernels in ("cudnn", "auto"):
        run = train(recipe, tmp_path / kernels, Runtime(device="cpu", kernels=kernels), until=4)  # type: ignore[arg-type]
        state = next((run.path / "checkpoints").glob("*/state.json"))
        losses.append(json.loads(state.read_text())["meter"][0])
    assert measured
    assert measured[0][0].n == 256
    assert "Triton for " in capsys.readouterr().err
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_benchmark_lists_the_choices(measured: list[tuple[Shape, str]], capsys: pytest.CaptureFixture[str]) -> None:
    options = "--width 1 --batch-size 32 --repetition 2 --precision bf16 --seconds 0.001 --repeats 1 --kernels auto"
    assert main(["bench", "digits/cut-mixmo", "--device", "cpu", *options.split()]) == 0
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines() if line.startswith("32 x ")]
    assert len(lines) == len(measured)
    shape, flops = lines[2], measured[2][0].flops
    assert shape[:4] == ["32", "x", "16->16", "8x8"]
    *columns, share = shape
    assert columns[-6:] == ["weight", "tile", "1.000", f"{flops / 1e9:.0f}", "0.500", f"{flops / 0.5e9:.0f}"]
    step = next(line.split()[4] for line in text.splitlines() if line.startswith("M=2"))  # the training step's ms
    assert float(share.replace(",", "")) == pytest.approx(
        50 * int(columns[-7]) / float(step.replace(",", "")), rel=0.02, abs=0.06
    )


def test_other_kernels_are_rejected() -> None:
    with pytest.raises(UserError, match="unknown kernels 'triton'"):
        Runtime(kernels="triton")  # type: ignore[arg-type]
