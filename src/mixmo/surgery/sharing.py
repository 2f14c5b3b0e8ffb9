"""Weights shared out among M layers whose outputs are summed, and summed up again."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError

DIVERSITY = 0.5  # docs/results/fine-tuning.md compares
SLIGHT = 2e-4  # of the weights, where deviations cancel only to first order


def check_diversity(diversity: object) -> None:
    if not isinstance(diversity, int | float) or not 0 <= diversity <= 1:
        raise UserError(f"diversity = {diversity}; give a number from 0 (identical members) to 1 (disjoint channels)")


def repeated(layers: Sequence[nn.Module], count: int) -> list[nn.Module]:
    """Return `count` copies of the layers, taken in turn."""
    return [copy.deepcopy(layers[m % len(layers)]) for m in range(count)]


def spread(layers: Sequence[nn.Module], members: int, diversity: float = DIVERSITY) -> list[nn.Module]:
    """Return `members` layers whose weights have the same sum as those given.

    An existing member keeps its deviation from the mean, a new one gets that of an existing one. New members share out
    the channels: each is weaker by `diversity` in all of them but its own, and stronger there by as much.

    >>> layer = nn.Conv2d(3, 8, 3)
    >>> a, b = spread([layer], members=2)
    >>> torch.allclose(a.weight + b.weight, layer.weight, atol=1e-6), torch.allclose(a.weight, b.weight)
    (True, False)
    """
    result = repeated(layers, members)
    if members == len(layers):
        return result
    channels = max((len(parameter) for parameter in layers[0].parameters() if parameter.dim() > 1), default=0)
    strength_MC = _strengths(channels, members, len(layers), diversity)
    with torch.no_grad():
        for name, parameter in layers[0].named_parameters():
            given = torch.stack([layer.get_parameter(name) for layer in layers])
            deviation = given[[m % len(layers) for m in range(members)]]
            deviation -= deviation.mean(0)
            shares = (given.sum(0) / members).expand_as(deviation)
            if parameter.dim() > 1:  # biases do not make members diverse
                strength = strength_MC[:, : len(parameter)].to(shares)
                shares = shares * strength.view(members, -1, *[1] * (parameter.dim() - 1))
            for new, part in zip(result, shares + deviation, strict=True):
                new.get_parameter(name).copy_(part)
    return result


@on_cpu
def _strengths(channels: int, members: int, origins: int, diversity: float) -> Tensor:
    """Return the strength of each channel in each member (M, C), one on average; existing members keep theirs.

    >>> _strengths(1, members=2, origins=1, diversity=0.5).T
    tensor([[1.5000, 0.5000]], dtype=torch.float64)
    >>> _strengths(1, members=3, origins=2, diversity=0.6).T
    tensor([[0.8000, 0.8000, 1.4000]], dtype=torch.float64)
    """
    first = 0 if origins == 1 else origins  # of the members that need to become diverse
    owners = max(2, members - first)
    owner_C = torch.randperm(channels) % owners
    strength_MC = torch.zeros(members, channels, dtype=torch.float64)
    strength_MC[first:] = diversity * (owners * (owner_C == torch.arange(max(0, members - first))[:, None]) - 1)
    return 1 + strength_MC - strength_MC.mean(0)


def split(layer: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return two layers whose weights sum to the given one's and are far from proportional to them.

    Their outputs sum to its output where that is linear in the weights.
    """
    one, other = copy.deepcopy(layer), copy.deepcopy(layer)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            share = torch.linspace(0, 1, parameter.numel(), device=parameter.device).to(parameter.dtype)
            one.get_parameter(name).mul_(share.view_as(parameter))
            other.get_parameter(name).sub_(one.get_parameter(name))
    return one, other


def perturbed(layer: nn.Module, members: int, diversity: float) -> list[nn.Module]:
    """Return `members` copies of a layer that is not linear in its weights; their mean is the layer up to rounding."""
    result = repeated([layer], members)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if parameter.dim() > 1:
                deviation = torch.randn(members, *parameter.shape, device=parameter.device, dtype=parameter.dtype)
                deviation *= diversity * SLIGHT * parameter.square().mean().sqrt()
                deviation -= deviation.mean(0)
                for new, part in zip(result, deviation, strict=True):
                    new.get_parameter(name).add_(part)
    return result


def summed(layers: Sequence[nn.Module], factor: float = 1.0) -> nn.Module:
    """Return one layer whose weights are the sum of the given ones', times `factor`."""
    result = copy.deepcopy(layers[0])
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            parameter.copy_(torch.stack([layer.get_parameter(name) for layer in layers]).sum(0) * factor)
    return result
