"""How weights are shared out among M layers whose outputs are summed, and put together again."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mixmo import memory
from mixmo.errors import UserError, check_number

NOISE = 0.1  # the least that sets the members apart; docs/finetune.md compares
SLIGHT = 1e-3  # of it, where noise cancels only to first order


def check_noise(noise: float) -> None:
    """Refuses what is no size of a deviation."""
    check_number("noise", noise)
    if not 0 <= noise < math.inf:
        raise UserError(f"noise = {noise!r}; give a number from 0, relative to the size of the stem's weights")


def repeated(layers: Sequence[nn.Module], count: int) -> list[nn.Module]:
    """`count` copies of the given layers, taken in turn."""
    device = next((parameter.device for parameter in layers[0].parameters()), torch.device("cpu"))
    memory.check(count * memory.weights(layers[0]), device, f"the layers of {count} members", "take fewer")
    return [copy.deepcopy(layers[m % len(layers)]) for m in range(count)]


def spread(layers: Sequence[nn.Module], members: int, noise: float = NOISE) -> list[nn.Module]:
    """`members` layers whose weights sum to what the given ones' sum to: W / M, and deviations that cancel.

    A member that was there keeps its deviation from the mean. A new one gets that of a member that was there and, since
    members that start alike stay alike, noise: `noise` times the root mean square of the summed weights.

    >>> layer = nn.Conv2d(3, 8, 3)
    >>> a, b = spread([layer], members=2)
    >>> torch.allclose(a.weight + b.weight, layer.weight, atol=1e-6), torch.allclose(a.weight, b.weight)
    (True, False)
    """
    result = repeated(layers, members)
    if members == len(layers):
        return result
    fresh = [len(layers) == 1 or m >= len(layers) for m in range(members)]
    with torch.no_grad():
        for name, parameter in layers[0].named_parameters():
            given = torch.stack([layer.get_parameter(name) for layer in layers])
            total = given.sum(0)
            deviation = torch.stack([given[m % len(layers)] - given.mean(0) for m in range(members)])
            if parameter.dim() > 1:  # a bias has no part in telling the members apart
                deviation += _noise(total, fresh, noise)
            deviation -= deviation.mean(0)
            for new, part in zip(result, total / members + deviation, strict=True):
                new.get_parameter(name).copy_(part)
    return result


def split(layer: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Two layers whose weights sum to the given one's and are far from proportional to them.

    Their outputs sum to its output where that is linear in the weights. Nothing is drawn: what a layer is found to be
    depends neither on noise nor on luck.
    """
    one, other = copy.deepcopy(layer), copy.deepcopy(layer)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            share = torch.linspace(0, 1, parameter.numel(), device=parameter.device).to(parameter.dtype)
            one.get_parameter(name).mul_(share.view_as(parameter))
            other.get_parameter(name).sub_(one.get_parameter(name))
    return one, other


def perturbed(layer: nn.Module, members: int, noise: float = NOISE) -> list[nn.Module]:
    """`members` copies of a layer that is not linear in its weights; their mean is the layer up to rounding.

    Deviations that cancel among the weights cancel only to first order in the outputs, so they are slight.
    """
    result = repeated([layer], members)
    if members == 1:
        return result
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if parameter.dim() > 1:
                deviation = _noise(parameter, [True] * members, noise * SLIGHT)
                deviation -= deviation.mean(0)
                for new, part in zip(result, deviation, strict=True):
                    new.get_parameter(name).add_(part)
    return result


def summed(layers: Sequence[nn.Module], factor: float = 1.0) -> nn.Module:
    """One layer whose weights are the sum of the given ones', times `factor`.

    >>> a, b = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)
    >>> x = torch.randn(1, 3, 8, 8)
    >>> torch.allclose(summed([a, b])(x), a(x) + b(x), atol=1e-5)
    True
    """
    result = copy.deepcopy(layers[0])
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            parameter.copy_(torch.stack([layer.get_parameter(name) for layer in layers]).sum(0) * factor)
    return result


def _noise(weight: Tensor, fresh: Sequence[bool], noise: float) -> Tensor:
    """Normal deviations (M, ...) for the fresh members, whose size survives taking off their mean."""
    members = len(fresh)
    drawn = torch.randn(members, *weight.shape, device=weight.device, dtype=weight.dtype)
    drawn *= torch.tensor(fresh, device=weight.device).view(-1, *[1] * weight.dim())
    return drawn * weight.square().mean().sqrt() * (noise * math.sqrt(members / max(1, members - 1)))
