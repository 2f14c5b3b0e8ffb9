"""Compiled networks predict as the network does, in batches of one size; in fp8 as its quantised convolutions do."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mixmo
from helpers import Standardised
from mixmo.inference import compiled
from mixmo.inference.compiled import quantise
from mixmo.kernels.layer import FrozenConv3x3FP8, Kernels, set_fp8
from mixmo.kernels.quantisation import quantised_input, quantised_weights
from mixmo.models.cost import layer_shapes
from mixmo.utils.errors import UserError

SIZE = (3, 8, 8)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Run networks as they are, where the test is about something else; return the batches that they get."""
    seen: list[Tensor] = []

    def stand_in(call: Callable[[Tensor], Tensor], **_: Any) -> Callable[[Tensor], Tensor]:
        return lambda images: (seen.append(images), call(images))[1]

    monkeypatch.setattr(torch, "compile", stand_in)
    return seen


def trained(net: mixmo.Ensemble) -> mixmo.Ensemble:
    """Return a network with statistics of its own, in training mode."""
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(std=0.2)
            layer.running_var.uniform_(0.5, 2)
    return net.train()


def network(members: int = 2) -> mixmo.Ensemble:
    torch.manual_seed(0)
    return trained(mixmo.create("wrn10_1", classes=5, members=members))


def images(samples: int) -> Tensor:
    return torch.randn(samples, *SIZE, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
def test_a_compiled_network_predicts_as_the_network_does() -> None:
    net, x = network(), images(7)
    expected = mixmo.predict(net, x).logits
    fast = mixmo.compile(net, precision="fp32", batch_size=4, size=SIZE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = mixmo.predict(fast, x).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("samples", [1, 4, 7])
def test_batches_are_padded_and_split_to_one_size(samples: int, uncompiled: list[Tensor]) -> None:
    net = network(members=3)
    fast = mixmo.compile(net, precision="fp32", batch_size=4, size=SIZE)
    found = mixmo.predict(fast, images(samples))
    assert {tuple(batch.shape) for batch in uncompiled} == {(4, *SIZE)}
    torch.testing.assert_close(found.logits, mixmo.predict(net, images(samples)).logits, rtol=1e-4, atol=1e-5)
    assert found.logits.shape == (3, samples, 5)


def test_metadata_and_calibration_are_those_of_the_network(uncompiled: list[Tensor]) -> None:
    net = network()
    held_out = mixmo.predict(net, images(40)).logits
    calibration = mixmo.calibrate(held_out, torch.arange(40) % 5)
    net.about = mixmo.About(size=SIZE, mean=(0.5,) * 3, std=(0.2,) * 3, calibration=calibration)
    pixels = torch.randint(256, (3, 8, 8, 3), dtype=torch.uint8)
    fast = mixmo.compile(net, precision="fp32")
    torch.testing.assert_close(mixmo.predict(fast, pixels).probs, mixmo.predict(net, pixels).probs)


def test_the_network_is_left_unchanged_and_the_compiled_one_stays_in_eval_mode(uncompiled: list[Tensor]) -> None:
    net = network()
    before = copy.deepcopy(net.state_dict())
    fast = mixmo.compile(net, precision="bf16", batch_size=4, size=SIZE)
    fast.train()
    mixmo.predict(fast, images(4))
    assert net.training
    assert not any(module.training for module in fast.modules())
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_a_network_that_cannot_be_folded_is_compiled_with_its_encoders(uncompiled: list[Tensor]) -> None:
    own = nn.Sequential(Standardised(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    net = mixmo.wrap(own, members=2, size=SIZE)
    with pytest.raises(UserError, match="cannot be folded"):
        mixmo.fold(net)
    fast = mixmo.compile(net, precision="fp32", batch_size=4)
    torch.testing.assert_close(mixmo.predict(fast, images(5)).logits, mixmo.predict(net, images(5)).logits)


def test_fp8_computes_the_convolutions_of_the_core_from_quantised_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU by torch, which is the definition; the same products from dequantised weights in float32 agree."""
    net = network().eval()
    exact = mixmo.fold(net).eval()
    fast = copy.deepcopy(exact)
    quantise(fast, SIZE, 4)
    layers = {name for name, layer in fast.named_modules() if isinstance(layer, FrozenConv3x3FP8)}
    expected = {name for name, layer in exact.named_modules() if isinstance(layer, nn.Conv2d) and "conv" in name}
    assert layers == {name for name in expected if exact.get_submodule(name).kernel_size == (3, 3)}
    assert len(layers) >= 6
    for name in layers:
        layer = exact.get_submodule(name)
        weight8, scale = quantised_weights(layer.weight)
        layer.weight.data = weight8.float() * scale[:, None, None, None]
        layer.register_forward_pre_hook(lambda _, given: quantised_input(given[0]).float())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = fast.each(images(4)).float()
    with torch.no_grad():
        dequantised, plain = exact.each(images(4)), mixmo.fold(net).each(images(4))
    error, quantisation = ((one - dequantised).norm() / dequantised.norm() for one in (found, plain))
    assert error < 5e-2  # bfloat16, and what it moves to another number of e4m3
    assert quantisation > 1e-3


def test_a_network_trained_in_fp8_is_quantised_too(uncompiled: list[Tensor]) -> None:
    net = network()
    for name, shape in layer_shapes(net, SIZE, 4).items():
        if shape.supported_in_fp8:
            set_fp8(net.get_submodule(name), shape, Kernels("cudnn", "cudnn", "cudnn"))
    folded = mixmo.fold(net).eval()
    quantise(folded, SIZE, 4)
    assert sum(isinstance(layer, FrozenConv3x3FP8) for layer in folded.modules()) >= 6


def test_what_cannot_be_done_is_said_in_one_sentence(uncompiled: list[Tensor], tmp_path: Path) -> None:
    net = network()
    with pytest.raises(UserError, match=r"fp8 needs Triton and an NVIDIA GPU .* device cpu here has not"):
        mixmo.compile(net, precision="fp8")
    with pytest.raises(UserError, match="unknown precision 'bf17'; did you mean 'bf16'"):
        mixmo.compile(net, precision="bf17")
    with pytest.raises(UserError, match="batch_size"):
        mixmo.compile(net, batch_size=0)
    with pytest.raises(UserError, match="give channels, height and width"):
        mixmo.compile(net, size=(3, 8))
    fast = mixmo.compile(net, precision="fp32", batch_size=4, size=SIZE)
    mix = mixmo.Mixer("cut", members=1)(images(4), torch.arange(4))
    with pytest.raises(UserError, match="a compiled network only predicts; train the network"):
        fast(mix)
    for use in (mixmo.compile, lambda net: mixmo.export(net, tmp_path / "net.onnx")):
        with pytest.raises(UserError, match="only predicts; give the network that it was compiled from"):
            use(fast)
    with pytest.raises(UserError, match="this network reads 1"):
        mixmo.predict(fast, images(4), images_per_pass=2)


def test_a_tile_that_no_kernel_has_is_not_replaced_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a GPU on which every kernel fails."""
    net = mixmo.fold(network()).eval()
    monkeypatch.setattr(compiled, "choices", lambda keys, device: {})
    monkeypatch.setattr(compiled, "available", lambda device: True)
    with pytest.raises(UserError, match="no Triton kernel computes 4 x 16->16 8x8 here; take bf16"):
        quantise(net, SIZE, 4)
