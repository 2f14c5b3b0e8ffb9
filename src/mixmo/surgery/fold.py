"""Fold M encoders into one: at test time all read the same image, and their sum is linear (paper, section 3.4)."""

import copy
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor, nn

from mixmo.models.network import Ensemble, Network
from mixmo.surgery.find import replace
from mixmo.surgery.probe import close, frozen, input_size, random_images, relative
from mixmo.surgery.sharing import summed
from mixmo.surgery.unwrap import unwrap
from mixmo.surgery.wrapped import Wrapped
from mixmo.utils.errors import UserError

E = TypeVar("E", bound=Ensemble)


def fold(net: E) -> E:
    """Return a copy with one encoder in place of M and the same predictions: an ordinary network with M heads.

    The encoders' sum for one image, sum_m c_m(x), is a single convolution with the summed weights. The result reads one
    image per pass (`members` is 1, `num_heads` still M), cannot be trained further, and is checked against `net`.

    Args:
        net: A network of `mixmo.create` or `mixmo.wrap`; it is left unchanged.

    Returns:
        The folded copy, of the same class.

    Raises:
        UserError: If `net` has no members, or its encoders are not linear in their weights (weight-standardised, with
            an activation, concatenated). Such a network predicts as it is.

    >>> from mixmo.models import create
    >>> net, x = create("wrn10_1", classes=10, members=3).eval(), torch.randn(4, 3, 8, 8)
    >>> torch.allclose(net.each(x), fold(net).each(x), atol=1e-5)
    True
    """
    net = unwrap(net)
    _check_foldable(net)
    folded = copy.deepcopy(net)
    if net.members > 1:
        if isinstance(folded, Network):
            folded.encoders = nn.ModuleList([summed(list(folded.encoders), net.members / len(folded.encoders))])
        elif isinstance(folded, Wrapped):
            for name in folded.stems:
                replace(folded.backbone, name, summed(list(folded.encoders_at(name).copies)))
        folded.members = 1
        _verify(net, folded, random_images(net, input_size(net)))
    return folded


def _check_foldable(net: object) -> None:
    if not isinstance(net, Network | Wrapped):
        raise UserError(f"a {type(net).__name__} cannot be folded; give a network of mixmo.create or mixmo.wrap")
    if net.members == 1:
        return
    if isinstance(net, Network):
        nonlinear = "a network of concatenated encodings" if net.concat else None
    else:
        nonlinear = next((f"stem '{name}'" for name in net.stems if not net.encoders_at(name).linear), None)
    if nonlinear:
        raise _not_linear(nonlinear)


def _not_linear(what: str) -> UserError:
    return UserError(f"{what} cannot be folded: it is not linear in its weights; use the network as it is")


def _verify(net: Ensemble, folded: Ensemble, images: Tensor) -> None:
    with frozen(net, folded), torch.no_grad():
        expected, logits = net.each(images), folded.each(images)
    if not close(logits, expected):
        if images.dtype != torch.float64:
            with suppress(UserError, RuntimeError):  # where rounding errors grow too large, float64 decides
                fold(copy.deepcopy(net).double())
                return
        raise _not_linear(f"the encoder (outputs differ by {relative(logits, expected):.1g} of their size)")
