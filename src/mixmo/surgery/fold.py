"""Fold M encoders into one: at test time all read the same image, and their sum is linear (paper, section 3.4)."""

import copy
from contextlib import suppress
from typing import TypeVar, cast

import torch
from torch import nn

from mixmo.models.network import Ensemble, Network
from mixmo.surgery.eval_view import in_eval_mode
from mixmo.surgery.find import replace
from mixmo.surgery.probe import close, frozen, input_size, random_images, relative
from mixmo.surgery.sharing import summed
from mixmo.surgery.unwrap import unwrap_ensemble
from mixmo.surgery.wrapped import Wrapped
from mixmo.utils.errors import UserError

E = TypeVar("E", bound=Ensemble)
NOT_LINEAR = "not linear in their weights cannot be folded; use the network as it is"


def fold(net: E) -> E:
    """Return a copy with one encoder in place of M and the same predictions: an ordinary network with M heads.

    The encoders' sum for one image, sum_m c_m(x), is a single convolution with the summed weights. The result reads one
    image per pass (`members` is 1, `num_heads` still M), cannot be trained further, and is checked against `net`.

    Args:
        net: A network of `mixmo.create` or `mixmo.wrap`; it is left unchanged.

    Raises:
        UserError: If `net` has no members, or its encoders are not linear in their weights (weight-standardised, with
            an activation, concatenated). Such a network predicts as it is.

    >>> from mixmo.models import create
    >>> net, x = create("wrn10_1", classes=10, members=3).eval(), torch.randn(4, 3, 8, 8)
    >>> torch.allclose(net.each(x), fold(net).each(x), atol=1e-5)
    True
    """
    net = cast(E, unwrap_ensemble(net))
    folded = folded_copy(net)
    if net.members == 1:
        return folded
    images = random_images(net, input_size(net))
    with frozen(folded), torch.no_grad():
        expected, logits = in_eval_mode(net).each(images), folded.each(images)
    if not expected.isfinite().all():
        raise UserError("the network outputs NaN or infinite values; check whether its training diverged")
    if close(logits, expected):
        return folded
    if images.dtype != torch.float64:
        with suppress(UserError, RuntimeError):  # where rounding errors grow too large, float64 decides
            fold(copy.deepcopy(net).double())
            return folded
    raise UserError(f"outputs would differ by {relative(logits, expected):.1g} of their size: encoders {NOT_LINEAR}")


def folded_copy(net: E) -> E:
    """Return what `fold` does, unchecked: also of a network on the meta device."""
    folded = copy.deepcopy(net)
    if net.members == 1:
        return folded
    if isinstance(folded, Network) and not folded.concat:
        folded.encoders = nn.ModuleList([summed(list(folded.encoders), net.members / len(folded.encoders))])
    elif isinstance(folded, Wrapped) and all(folded.encoders_at(name).linear for name in folded.stems):
        for name in folded.stems:
            replace(folded.backbone, name, summed(list(folded.encoders_at(name).copies)))
    else:
        raise UserError(f"encoders that are concatenated or {NOT_LINEAR}")
    folded.members = 1
    return folded
