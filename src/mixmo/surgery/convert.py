"""From a trained network to one of other members or other classes, which starts where the trained one ended."""

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from mixmo.models.metadata import About
from mixmo.models.network import Ensemble, Network, initialise
from mixmo.surgery.find import replace
from mixmo.surgery.layers import Encoders, Heads
from mixmo.surgery.probe import at_rest, sample
from mixmo.surgery.sharing import APART, check_apart, perturbed, repeated, spread, summed
from mixmo.surgery.unwrap import bare
from mixmo.surgery.wrapped import Wrapped
from mixmo.utils import memory
from mixmo.utils.errors import UserError, check_members, check_whole, first_line

E = TypeVar("E", bound=Ensemble)


def convert(net: E, *, members: int | None = None, classes: int | None = None, apart: float = APART) -> E:
    """A copy of a network with other `members` or `classes`; what is not given stays.

    The encoders still sum to what they summed to, so that head m answers an image as head m modulo M did; heads for
    other classes start anew. An ordinary network is one of one member. How images are prepared goes over into the
    result's `about`, and so do the names of classes that stay; scores and calibration do not hold for it.

    >>> import torch
    >>> from mixmo.models import create
    >>> net, x = create("wrn10_1", classes=10, members=2).eval(), torch.randn(4, 3, 8, 8)
    >>> three = convert(net, members=3)
    >>> torch.allclose(three.each(x)[2], net.each(x)[0], atol=1e-5)
    True
    """
    if members is not None:
        check_members(members)
    if classes is not None:
        check_whole("classes", classes, least=2)
    check_apart(apart)
    net = bare(net)
    result = copy.deepcopy(net)
    if isinstance(result, Network):
        _convert_network(result, members or net.members, classes, apart)
    elif isinstance(result, Wrapped):
        _convert_wrapped(result, members or net.members, classes, apart)
    else:
        raise UserError(f"a {type(net).__name__} cannot be converted; only networks of mixmo.create and mixmo.wrap can")
    about = net.about
    names = about.classes if about and classes is None else None
    result.about = about and About(about.size, about.mean, about.std, names, about.resize)
    return result


def _convert_network(net: Network, members: int, classes: int | None, apart: float) -> None:
    encoders, heads = list(net.encoders), list(net.heads)
    if members != net.members:
        _unfolded(net)
        if net.concat:
            raise UserError("the core of concatenated encodings is as wide as its members; train one of other members")
        if len(encoders) < net.members:  # one for all: its sum is M times itself
            net.encoders = nn.ModuleList([summed(encoders, net.members / members)])
        else:
            net.encoders = nn.ModuleList(spread(encoders, members, apart))
        shared = len(heads) < net.members
        net.heads = nn.ModuleList(repeated(heads, 1 if shared else members))
    if classes is not None:
        net.heads = nn.ModuleList([initialise(head) for head in _anew(list(net.heads), classes)])
    net.members, net.answers = members, len(net.heads)


def _convert_wrapped(net: Wrapped, members: int, classes: int | None, apart: float) -> None:
    if members != net.members:
        _unfolded(net)
        for name in net.stems:
            old = net.encoders_at(name)
            if not old.linear and members % net.members:
                raise UserError(
                    f"stem '{name}' is not linear in its weights, so {net.members} of them cannot be shared out among "
                    f"{members}; take a multiple"
                )
            if old.linear:
                copies = spread(list(old.copies), members, apart)
            else:
                groups = [perturbed(copy, members // net.members, apart) for copy in old.copies]
                copies = [copy for each in zip(*groups, strict=True) for copy in each]
            replace(net.backbone, name, Encoders(copies, old.layout, old.linear))
    for name in net.heads:
        heads = net.heads_at(name)
        count = members if members != net.members else len(heads.copies)
        copies = repeated(list(heads.copies), count)
        if classes is not None:
            copies = _anew(copies, classes)
        replace(net.backbone, name, Heads(copies, heads.dim, heads.follows))
        net.answers = count
    net.members, net.classes = members, classes or net.classes
    if classes is not None:
        _check_classes(net)


def _check_classes(net: Wrapped) -> None:
    """Refuses a backbone that counts on its classes after its head."""
    try:
        with at_rest(net), torch.no_grad():
            net.each(sample(net, net.size))
    except Exception as error:  # whatever a foreign model says when shapes do not fit
        raise UserError(
            f"the model cannot answer for {net.classes} classes ({first_line(error)}); give it other classes, then "
            "wrap it"
        ) from error


def _unfolded(net: Ensemble) -> None:
    if net.members == 1 < net.answers:
        raise UserError(
            "a folded network reads one image for all its heads; convert the network that it was folded from"
        )


def _anew(heads: Sequence[nn.Module], classes: int) -> list[nn.Module]:
    """Fresh layers like `heads`, for other classes."""
    return [_fresh(head, classes, len(heads)) for head in heads]


def _fresh(head: nn.Module, classes: int, count: int) -> nn.Module:
    """A fresh layer like `head`, one of `count`."""
    if type(head) is not nn.Linear and not (type(head) is nn.Conv2d and head.groups == 1):
        raise UserError(
            f"a head of {type(head).__name__} cannot be made anew; give the model other classes, then wrap it"
        )
    weight: Tensor = head.get_parameter("weight")
    needed = count * classes * (memory.weights(head) // len(weight))
    memory.check(needed, weight.device, f"the heads of {classes} classes", "take fewer classes")
    new: nn.Module
    like = {"bias": head.bias is not None}
    if isinstance(head, nn.Linear):
        new = nn.Linear(head.in_features, classes, **like)
    else:
        shape = (head.kernel_size, head.stride, head.padding, head.dilation)
        new = nn.Conv2d(head.in_channels, classes, *shape, padding_mode=head.padding_mode, **like)  # type: ignore[arg-type]
    return new.to(weight.device, weight.dtype).train(head.training)
