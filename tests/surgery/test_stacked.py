"""Two first convolutions computed as one."""

from unittest.mock import Mock

import pytest
import torch
from torch import nn

import mixmo
from mixmo.mixing.block import mixing_block
from mixmo.surgery import layers, stacked
from mixmo.surgery.stacked import stackable


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("channels", "members"), [(3, 2), (1, 4), (4, 2), (2, 3)])
def test_the_stacked_convolution_is_each_convolution_with_its_gradients(
    channels: int, members: int, bias: bool
) -> None:
    layers = [nn.Conv2d(channels, 5, 3, 2, 1, bias=bias).double() for _ in range(members)]
    images = [torch.randn(2, channels, 9, 8, dtype=torch.float64) for _ in range(members)]
    assert stackable(layers)
    ways = [stacked.stacked(layers, images), [layer(x) for layer, x in zip(layers, images, strict=True)]]
    torch.testing.assert_close(*ways)
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    weights = [torch.randn_like(y) for y in ways[0]]
    gradients = [
        torch.autograd.grad(sum((y * w).sum() for y, w in zip(way, weights, strict=True)), parameters) for way in ways
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["cut", "linear"])
@pytest.mark.parametrize("side", [12, 14])  # 14 leaves a rest of two pixels
def test_patches_are_mixed_as_their_features(kind: str, bias: bool, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output and gradients as by two convolutions and the mixing block."""
    monkeypatch.setattr(stacked, "on_tensor_cores", lambda _: True)
    stems = [nn.Conv2d(3, 5, 4, 4, bias=bias).double() for _ in range(2)]
    images = [torch.randn(6, 3, side, side, dtype=torch.float64) for _ in range(2)]
    share = torch.rand(6, 1, 1, 1) if kind == "linear" else torch.randint(2, (6, 1, 3, 3)).float()
    coefficients = torch.stack([share, 1 - share]).double()
    assert stacked.mixes_patches(stems, images, coefficients)
    assert not stacked.mixes_patches(stems, images, torch.ones(2, 6, 1, 5, 5))
    ways = [
        stacked.mixed_patches(stems, images, coefficients),
        mixing_block([layer(x) for layer, x in zip(stems, images, strict=True)], coefficients),
    ]
    torch.testing.assert_close(*ways)
    parameters, weight = [p for layer in stems for p in layer.parameters()], torch.randn_like(ways[0])
    torch.testing.assert_close(*[torch.autograd.grad((way * weight).sum(), parameters) for way in ways])


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(3, 4, 3)],
        [nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3, 2)],
        [nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3, bias=False)],
        [nn.Conv2d(3, 4, 3) for _ in range(3)],
        [nn.Conv2d(4, 4, 3, groups=2) for _ in range(2)],
        [nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect") for _ in range(2)],
        [nn.Sequential(nn.Conv2d(3, 4, 3)) for _ in range(2)],
    ],
    ids=["one", "strides", "biases", "nine channels", "groups", "reflect", "deep"],
)
def test_other_stems_are_not_stacked(layers: list[nn.Module]) -> None:
    assert not stackable(layers)


def test_stems_with_hooks_are_not_stacked() -> None:
    layers = [nn.Conv2d(3, 4, 3) for _ in range(2)]
    layers[1].register_forward_hook(lambda *_: None)
    assert not stackable(layers)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("kernel", "function"), [(3, "stacked"), (2, "mixed_patches")])
def test_a_wrapped_network_computes_the_same_with_one_convolution(
    kernel: int, function: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = [nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
    net = mixmo.wrap(nn.Sequential(nn.Conv2d(3, 8, kernel, 2), *body), members=2, size=(3, 16, 16))
    mix = mixmo.Mixer("cut", stride=net.stride)(torch.randn(4, 3, 16, 16), torch.arange(4))
    expected = net(mix)
    monkeypatch.setattr(stacked, "on_tensor_cores", lambda _: True)
    where = stacked if function == "stacked" else layers
    monkeypatch.setattr(where, function, spy := Mock(side_effect=getattr(where, function)))
    found = (torch.compile(net, backend="aot_eager") if compiled else net)(mix)
    assert spy.called
    torch.testing.assert_close(found, expected)
