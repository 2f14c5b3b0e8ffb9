"""Sub-networks by masking against weights that are really sliced; the loss by its formula."""

import copy

import pytest
import torch
from torch import nn

from mixmo.baselines.gradaug import SIDES, Subnet, draw_subnets, narrowed, subnet_loss
from mixmo.mixing.types import Mix
from mixmo.models import Network, create


def sliced(net: Network, width: float) -> Network:
    """The sub-network as a network of its own, with fewer channels."""
    small = copy.deepcopy(net)

    def count(channels: int) -> int:
        return int(width * channels + 0.5)

    for name, layer in small.named_modules():
        if isinstance(layer, nn.Conv2d):
            inputs = layer.weight.shape[1] if name.startswith("encoders") else count(layer.weight.shape[1])
            layer.weight = nn.Parameter(layer.weight[: count(len(layer.weight)), :inputs].clone())
        elif isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(layer.weight[:, : count(layer.weight.shape[1])].clone())
        elif isinstance(layer, nn.BatchNorm2d):
            kept = count(layer.num_features)
            layer.weight, layer.bias = (
                nn.Parameter(layer.weight[:kept].clone()),
                nn.Parameter(layer.bias[:kept].clone()),
            )
            layer.running_mean, layer.running_var = layer.running_mean[:kept].clone(), layer.running_var[:kept].clone()
    return small


@pytest.fixture
def net() -> Network:
    torch.manual_seed(0)
    return create("wrn10_2", classes=5, members=1)


@pytest.mark.parametrize("width", [0.8, 0.9, 1.0])
def test_masking_equals_slicing(net: Network, width: float) -> None:
    images = torch.randn(6, 3, 8, 8)
    with narrowed(net, width):
        ours = net(images)
    torch.testing.assert_close(ours, sliced(net, width)(images), rtol=1e-4, atol=1e-5)


def test_sub_networks_restore_the_network(net: Network) -> None:
    """Statistics, momentum and hooks are as before."""
    before = {k: v.clone() for k, v in net.state_dict().items() if "num_batches" not in k}
    images = torch.randn(6, 3, 8, 8)
    with narrowed(net, 0.8):
        net(images)
    assert all(torch.equal(net.state_dict()[k], v) for k, v in before.items())
    torch.testing.assert_close(net(images), copy.deepcopy(net)(images))
    assert all(m.momentum == 0.1 for m in net.modules() if isinstance(m, nn.BatchNorm2d))


def test_loss_equals_its_formula(net: Network) -> None:
    images = torch.randn(1, 6, 3, 8, 8)
    mix = Mix(images, torch.ones(1, 6, 1, 1, 1), torch.zeros(1, 6).long(), torch.ones(1, 6))
    logits = net(mix)
    value = subnet_loss(net, mix, logits, [Subnet(0.8, 0.75)])
    small = nn.functional.interpolate(images[0], (6, 6), mode="bilinear", align_corners=True)
    p, q = logits[0].detach().softmax(-1), sliced(net, 0.8)(small).softmax(-1)
    torch.testing.assert_close(value, (p * (p / q).log()).sum(-1).mean(), rtol=1e-4, atol=1e-5)
    value.backward()
    assert all(p.grad is not None for p in net.core.parameters())


def test_draws_are_in_range_and_deterministic() -> None:
    subnets = draw_subnets(3, torch.Generator().manual_seed(5))
    assert subnets == draw_subnets(3, torch.Generator().manual_seed(5))
    assert subnets[-1].width == 0.8
    assert all(0.8 <= s.width <= 1 and s.side in SIDES for s in subnets)
    assert [s.width for s in subnets] == sorted((s.width for s in subnets), reverse=True)
