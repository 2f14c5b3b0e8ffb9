"""Training in fp8, its convolutions computed by torch on the CPU: scales, NaN, resuming, and where it is rejected."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mixmo import UserError, data
from mixmo.cli.app import main
from mixmo.engine import Runtime, convolutions, train, training
from mixmo.engine.convolutions import choose_kernels
from mixmo.engine.distributed import World
from mixmo.engine.initialization import fresh_network
from mixmo.engine.maxima import Maxima
from mixmo.engine.optimizer import make_optimizer
from mixmo.engine.step import Step
from mixmo.engine.step_timer import StepTimer
from mixmo.kernels import remembered
from mixmo.kernels.choice import Choice
from mixmo.kernels.layer import Conv3x3FP8
from mixmo.kernels.ops import CUDNN
from mixmo.kernels.quantisation import E4M3
from mixmo.kernels.remembered import recall
from mixmo.kernels.shapes import Shape
from mixmo.recipes import named
from mixmo.storage.weights import load_tensors

CPU = torch.device("cpu")
RECIPE = named("digits/cut-mixmo").replace(width=1, batch_size=64, repetition=2, precision="fp8")
RUNTIME = Runtime(device="cpu", quiet=True)


def layers(net: nn.Module) -> list[Conv3x3FP8]:
    return [layer for layer in net.modules() if isinstance(layer, Conv3x3FP8)]


def test_fp8_is_rejected_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"precision = fp8 needs Triton and an NVIDIA GPU .* precision = bf16"):
        train(RECIPE, tmp_path / "run", RUNTIME)
    assert not (tmp_path / "run").exists()
    assert main(["bench", "digits/cut-mixmo", "--device", "cpu", "--precision", "fp8"]) == 2
    assert "needs Triton and an NVIDIA GPU" in capsys.readouterr().err


def test_a_benchmark_compares_with_the_limits_of_bf16_and_fp8(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mixmo.engine.benchmark.check_precision", lambda *_: None)
    options = "--width 1 --batch-size 8 --precision fp8 --seconds 0.001 --repeats 1 --device cpu --json"
    assert main(["bench", "digits/vanilla", *options.split()]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["fp8_peak_tflops"] != result["peak_tflops"]
    for row in result["rows"]:
        assert row["share_of_fp8_peak"] == pytest.approx(row["tflops"] / result["fp8_peak_tflops"])


@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_scales_by_the_maxima_of_the_step_before(parts: int) -> None:
    """Of several parts, by the largest one; and the loss is near that of bf16."""
    seen: dict[str, list[float]] = {}
    recipe = RECIPE.replace(grad_accum_steps=parts)
    timer = StepTimer(recipe, data.load("digits"), CPU, compiled=False)

    def note(name: str) -> object:
        return lambda _, __, dy: seen.setdefault(name, []).append(dy[0].abs().max().item())

    for name, layer in timer.net.named_modules():
        if isinstance(layer, Conv3x3FP8):
            layer.register_full_backward_hook(note(name))  # type: ignore[arg-type]
    assert [value.item() for value in timer.step.maxima.values] == [1.0] * len(layers(timer.net))
    for _ in range(2):
        seen.clear()
        timer.next_step()
        assert all(len(found) == parts for found in seen.values())
        assert timer.step.maxima.state() == {name: max(seen[name]) for name in timer.step.maxima.names}
    half = StepTimer(recipe.replace(precision="bf16"), data.load("digits"), CPU, compiled=False)
    half.next_step()
    half.next_step()
    torch.testing.assert_close(timer.step.meter[0], half.step.meter[0], rtol=0.02, atol=0)


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_a_gradient_that_is_not_finite_is_noticed(bad: float) -> None:
    """The gradients before the layer are not finite either, and --on-nan skip changes nothing in this step."""
    timer = StepTimer(RECIPE, data.load("digits"), CPU, compiled=False)
    optimizer = make_optimizer(timer.net, RECIPE)
    timer.step = step = Step(timer.net, optimizer, timer.batches, compiled=False, graphed=False, skip=True)
    timer.next_step()
    maxima, last = step.maxima.state(), layers(timer.net)[-1]
    before = {name: value.clone() for name, value in timer.net.state_dict().items()}

    def spoil(_: nn.Module, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        dy = gradients[0].clone()
        dy[0, 0, 0, 0] = bad
        return (dy,)

    last.register_full_backward_pre_hook(spoil)  # type: ignore[arg-type]
    timer.next_step()
    first = layers(timer.net)[0].weight.grad
    assert first is not None
    for gradient in (last.weight.grad, first):
        assert gradient is not None
        assert not gradient.isfinite().all()
    assert maxima is not None
    assert step.maxima.state() == maxima
    assert step.meter[2] == 1
    assert all(torch.equal(value, before[name]) for name, value in timer.net.state_dict().items())


def test_a_skipped_step_changes_no_maximum() -> None:
    net = fresh_network(RECIPE, data.load("digits"))
    choose_kernels(net, (1, 8, 8), 64, "fp8", CPU, World())
    maxima = Maxima(net)
    for skipped, expected in ((1.0, 1.0), (0.0, 3.0)):
        for value in maxima.values:
            value.grad = torch.tensor(3.0)
        maxima.collect()
        maxima.update(torch.tensor(skipped))
        maxima.clear()
        assert set((maxima.state() or {}).values()) == {expected}


def test_a_resumed_run_is_the_same_and_saves_what_any_run_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "check_precision", lambda *_: None)
    train(RECIPE, tmp_path / "whole", RUNTIME, until=3)
    for until in (1, 3):
        train(RECIPE, tmp_path / "resumed", RUNTIME, until=until, resume=True)
    train(RECIPE.replace(precision="bf16"), tmp_path / "half", RUNTIME, until=3)
    whole, resumed, half = (tmp_path / name / "checkpoints/00000003" for name in ("whole", "resumed", "half"))
    for file in ("weights", "optimizer"):
        one, other = (load_tensors(folder / f"{file}.safetensors") for folder in (whole, resumed))
        assert one.keys() == other.keys() == load_tensors(half / f"{file}.safetensors").keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    states = [json.loads((folder / "state.json").read_text()) for folder in (whole, resumed, half)]
    assert states[0]["maxima"] == states[1]["maxima"]
    assert len(states[0]["maxima"]) > 2
    assert all(0 < value < 1 for value in states[0]["maxima"].values())
    assert states[2]["maxima"] is None


@pytest.mark.parametrize("kernels", ["cudnn", "auto"])
def test_forward_and_input_gradient_are_always_measured(
    kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the encoders, and the other directions with --kernels auto only."""
    seen = []

    def choose(shape: Shape, direction: str, dtype: torch.dtype, device: torch.device) -> Choice:
        seen.append((shape.c, direction, dtype))
        return Choice("tile", 1.0, "tile", 0.5)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(convolutions, "available", lambda _: True)
    monkeypatch.setattr(remembered, "environment", lambda _: "here")
    monkeypatch.setattr(remembered, "choose", choose)
    net = fresh_network(RECIPE, data.load("digits"))
    found = choose_kernels(net, (1, 8, 8), 64, "fp8", CPU, World(), kernels)
    half = {(direction, dtype) for _, direction, dtype in seen if dtype != E4M3}
    assert {direction for _, direction, dtype in seen if dtype == E4M3} == {"forward", "input"}
    assert half == ({("weight", torch.bfloat16)} if kernels == "auto" else set())
    assert len(found) == len(seen)
    assert len(layers(net)) == sum(each.layers for each in found if each.direction == "forward") > 2
    assert not layers(net.get_submodule("encoders"))
    assert {layer.kernels.weight for layer in layers(net)} == {"tile" if kernels == "auto" else "cudnn"}


@pytest.mark.parametrize("failing", ["all", "one"])
def test_kernels_that_fail_are_no_silent_slowness(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And they are tried again the next time: there may have been too little memory."""

    def choose(shape: Shape, direction: str, *_: object) -> Choice:
        fails = failing == "all" or (direction, shape.c) == ("input", 64)
        return Choice(CUDNN, 1.0) if fails else Choice("tile", 1.0, "tile", 0.5)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(convolutions, "available", lambda _: True)
    monkeypatch.setattr(remembered, "environment", lambda _: "here")
    monkeypatch.setattr(remembered, "choose", choose)
    net = fresh_network(RECIPE, data.load("digits"))
    with pytest.raises(UserError, match=r"no Triton kernel computes 64 x .*, float8_e4m3fn here"):
        choose_kernels(net, (1, 8, 8), 64, "fp8", CPU, World())
    kept = recall("here")
    assert (len(kept) > 0) == (failing == "one")
    assert all(choice.tile for choice in kept.values())
