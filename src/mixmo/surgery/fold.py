"""At test time one image enters all encoders, and their sum is linear: it is one convolution (paper, section 3.4)."""

import copy
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor, nn

from mixmo.models.network import Ensemble, Network
from mixmo.surgery.find import replace
from mixmo.surgery.probe import at_rest, close, input_size, relative, sample
from mixmo.surgery.sharing import summed
from mixmo.surgery.unwrap import bare
from mixmo.surgery.wrapped import Wrapped
from mixmo.utils.errors import UserError

E = TypeVar("E", bound=Ensemble)
NONLINEAR = "it is not linear in its weights (weight-standardised, or with an activation); use the network as it is"


def fold(net: E) -> E:
    """A copy with one encoder in the place of M, and the same answers to an image: an ordinary network with M heads.

    It reads one image at a time (`members` is 1, `answers` still M). Refused, with the reason, for what is not linear
    in the encoders' weights; such a network predicts as it is.

    >>> from mixmo.models import create
    >>> net, x = create("wrn10_1", classes=10, members=3).eval(), torch.randn(4, 3, 8, 8)
    >>> torch.allclose(net.each(x), fold(net).each(x), atol=1e-5)
    True
    """
    net = bare(net)
    if not isinstance(net, Network | Wrapped):
        raise UserError(f"a {type(net).__name__} cannot be folded; only networks of mixmo.create and mixmo.wrap can")
    folded = copy.deepcopy(net)
    if net.members > 1:
        _fold_network(folded) if isinstance(folded, Network) else _fold_wrapped(folded)
        folded.members = 1
        _verify(net, folded, sample(net, input_size(net)))
    return folded


def _fold_network(net: Network) -> None:
    if net.concat:
        raise UserError("encodings that are concatenated cannot be folded into one; use the network as it is")
    net.encoders = nn.ModuleList([summed(list(net.encoders), net.members / len(net.encoders))])


def _fold_wrapped(net: Wrapped) -> None:
    for name in net.stems:
        encoders = net.encoders_at(name)
        if not encoders.linear:
            raise UserError(f"stem '{name}' cannot be folded: {NONLINEAR}")
        replace(net.backbone, name, summed(list(encoders.copies)))


def _verify(net: Ensemble, folded: Ensemble, images: Tensor) -> None:
    with at_rest(net, folded), torch.no_grad():
        expected, got = net.each(images), folded.each(images)
    if not expected.isfinite().all():
        raise UserError("the network answers NaN or infinite values; see whether its training diverged")
    if not close(got, expected):
        if images.dtype != torch.float64:
            with suppress(UserError, RuntimeError):  # where rounding is blown up, float64 tells
                fold(copy.deepcopy(net).double())
                return
        difference = relative(got, expected)
        raise UserError(
            f"the encoders cannot be folded (answers differ by {difference:.1g} of their size): {NONLINEAR}"
        )
