"""How weights are shared out among M layers whose outputs are summed, and put together again."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mixmo.utils import memory
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError, check_number

APART = 0.5  # docs/finetune.md compares
SLIGHT = 2e-4  # of the weights, where deviations cancel only to first order


def check_apart(apart: float) -> None:
    """Refuses what is no distance between members."""
    check_number("apart", apart)
    if not 0 <= apart <= 1:
        raise UserError(f"apart = {apart!r}; give a number from 0, members alike, to 1, each with channels of its own")


def repeated(layers: Sequence[nn.Module], count: int) -> list[nn.Module]:
    """`count` copies of the given layers, taken in turn."""
    device = next((parameter.device for parameter in layers[0].parameters()), torch.device("cpu"))
    memory.check(count * memory.weights(layers[0]), device, f"the layers of {count} members", "take fewer")
    return [copy.deepcopy(layers[m % len(layers)]) for m in range(count)]


def spread(layers: Sequence[nn.Module], members: int, apart: float = APART) -> list[nn.Module]:
    """`members` layers whose weights sum to what the given ones' sum to, each with channels that are mostly its own.

    A member that was there keeps its deviation from the mean, a new one gets that of a member that was there. Members
    that start alike stay alike, so new ones share out the channels: each is weaker by `apart` in all of them but one,
    and as much stronger in that one.

    >>> layer = nn.Conv2d(3, 8, 3)
    >>> a, b = spread([layer], members=2)
    >>> torch.allclose(a.weight + b.weight, layer.weight, atol=1e-6), torch.allclose(a.weight, b.weight)
    (True, False)
    """
    result = repeated(layers, members)
    if members == len(layers):
        return result
    channels = max((len(parameter) for parameter in layers[0].parameters() if parameter.dim() > 1), default=0)
    strength_MC = _strengths(channels, members, len(layers), apart)
    with torch.no_grad():
        for name, parameter in layers[0].named_parameters():
            given = torch.stack([layer.get_parameter(name) for layer in layers])
            deviation = given[[m % len(layers) for m in range(members)]]
            deviation -= deviation.mean(0)
            shares = (given.sum(0) / members).expand_as(deviation)
            if parameter.dim() > 1:  # a bias has no part in telling the members apart
                strength = strength_MC[:, : len(parameter)].to(shares)
                shares = shares * strength.view(members, -1, *[1] * (parameter.dim() - 1))
            for new, part in zip(result, shares + deviation, strict=True):
                new.get_parameter(name).copy_(part)
    return result


@on_cpu
def _strengths(channels: int, members: int, origins: int, apart: float) -> Tensor:
    """How strong each channel is in each member (M, C), one on average; those that were there differ as they did.

    >>> _strengths(1, members=2, origins=1, apart=0.5).T
    tensor([[1.5000, 0.5000]], dtype=torch.float64)
    >>> _strengths(1, members=3, origins=2, apart=0.6).T
    tensor([[0.8000, 0.8000, 1.4000]], dtype=torch.float64)
    """
    first = 0 if origins == 1 else origins  # of the members that need to be set apart
    owners = max(2, members - first)
    owner_C = torch.randperm(channels) % owners
    strength_MC = torch.zeros(members, channels, dtype=torch.float64)
    strength_MC[first:] = apart * (owners * (owner_C == torch.arange(max(0, members - first))[:, None]) - 1)
    return 1 + strength_MC - strength_MC.mean(0)


def split(layer: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Two layers whose weights sum to the given one's and are far from proportional to them.

    Their outputs sum to its output where that is linear in the weights. Nothing is drawn: what a layer is found to be
    depends neither on `apart` nor on luck.
    """
    one, other = copy.deepcopy(layer), copy.deepcopy(layer)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            share = torch.linspace(0, 1, parameter.numel(), device=parameter.device).to(parameter.dtype)
            one.get_parameter(name).mul_(share.view_as(parameter))
            other.get_parameter(name).sub_(one.get_parameter(name))
    return one, other


def perturbed(layer: nn.Module, members: int, apart: float) -> list[nn.Module]:
    """`members` copies of a layer that is not linear in its weights; their mean is the layer up to rounding.

    Deviations that cancel among the weights cancel only to first order in the outputs, so they are slight.
    """
    result = repeated([layer], members)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if parameter.dim() > 1:
                deviation = torch.randn(members, *parameter.shape, device=parameter.device, dtype=parameter.dtype)
                deviation *= apart * SLIGHT * parameter.square().mean().sqrt()
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
