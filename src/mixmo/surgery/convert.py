"""From a trained network to one with another number of members or classes, which starts where the trained one ended."""

import copy
from typing import TypeVar, cast

import torch
from torch import nn

from mixmo.models import MOST_CLASSES
from mixmo.models.metadata import About
from mixmo.models.network import Ensemble, Network, initialise
from mixmo.surgery.find import replace
from mixmo.surgery.layers import Encoders, Heads
from mixmo.surgery.probe import frozen, random_images
from mixmo.surgery.sharing import DIVERSITY, check_diversity, perturbed, repeated, spread, summed
from mixmo.surgery.unwrap import unwrap_ensemble
from mixmo.surgery.wrapped import Wrapped
from mixmo.utils.errors import UserError, check_whole, first_line

E = TypeVar("E", bound=Ensemble)
BEFORE = "change the classes of the model, then wrap it"


def convert(net: E, *, members: int | None = None, classes: int | None = None, diversity: float = DIVERSITY) -> E:
    """Return a copy of a network with another number of members or classes.

    The encoders keep their sum, so that head m predicts as head m modulo M did. Heads for other classes are new.
    `about` keeps how images are prepared, and the class names if the classes stay; scores and calibration are dropped.

    Args:
        net: A network of `mixmo.create` or `mixmo.wrap`; it is left unchanged.
        members: New number of members; the same if None.
        classes: New number of classes, at least 2; the same if None.
        diversity: Initial diversity of new members, from 0 (identical) to 1 (disjoint channels); see `mixmo.wrap`.

    Raises:
        UserError: If `net` has no members, is folded, or has layers that cannot be shared out or replaced.

    >>> import torch
    >>> from mixmo.models import create
    >>> net, x = create("wrn10_1", classes=10, members=2).eval(), torch.randn(4, 3, 8, 8)
    >>> three = convert(net, members=3)
    >>> torch.allclose(three.each(x)[2], net.each(x)[0], atol=1e-5)
    True
    """
    net = cast(E, unwrap_ensemble(net))
    members = net.members if members is None else members
    check_whole("members", members)
    check_whole("classes", 2 if classes is None else classes, least=2, most=MOST_CLASSES)
    check_diversity(diversity)
    concat = isinstance(net, Network) and net.concat
    if members != net.members and (concat or net.members == 1 < net.num_heads):
        raise UserError("the members of a folded or concatenating network are fixed; convert the one before folding")
    result = copy.deepcopy(net)
    if isinstance(result, Network):
        _convert_network(result, members, classes, diversity)
    elif isinstance(result, Wrapped):
        _convert_wrapped(result, members, classes, diversity)
    else:
        raise UserError(f"a {type(net).__name__} cannot be converted; give a network of mixmo.create or mixmo.wrap")
    about = net.about
    names = about.classes if about and classes is None else None
    result.about = about and About(about.size, about.mean, about.std, names, about.resize)
    return result


def _convert_network(net: Network, members: int, classes: int | None, diversity: float) -> None:
    encoders, heads = list(net.encoders), list(net.heads)
    if members != net.members:
        if len(encoders) < net.members:  # one for all: its sum is M times itself
            net.encoders = nn.ModuleList([summed(encoders, net.members / members)])
        else:
            net.encoders = nn.ModuleList(spread(encoders, members, diversity))
        shared = len(heads) < net.members
        net.heads = nn.ModuleList(repeated(heads, 1 if shared else members))
    if classes is not None:
        net.heads = initialise(nn.ModuleList([_new_head(head, classes) for head in net.heads]))
    net.members, net.num_heads = members, len(net.heads)


def _convert_wrapped(net: Wrapped, members: int, classes: int | None, diversity: float) -> None:
    if members != net.members:
        for name in net.stems:
            old = net.encoders_at(name)
            if old.linear:
                copies = spread(list(old.copies), members, diversity)
            elif members % net.members == 0:
                groups = [perturbed(copy, members // net.members, diversity) for copy in old.copies]
                copies = [copy for each in zip(*groups, strict=True) for copy in each]
            else:
                raise UserError(f"stem '{name}' is not linear in its weights; take a multiple of {net.members} members")
            replace(net.backbone, name, Encoders(copies, old.layout, old.linear))
        net.members = net.num_heads = members
    for name in net.heads:
        heads = net.heads_at(name)
        copies = repeated(list(heads.copies), net.num_heads)
        if classes is not None:
            copies = [_new_head(head, classes) for head in copies]
        replace(net.backbone, name, Heads(copies, heads.dim, heads.follows))
    if classes is not None:
        net.classes = classes
        try:  # the backbone may depend on its number of classes after its head
            with frozen(net), torch.no_grad():
                net.each(random_images(net, net.size))
        except Exception as error:
            raise UserError(f"the model cannot have {classes} classes ({first_line(error)}); {BEFORE}") from error


def _new_head(head: nn.Module, classes: int) -> nn.Module:
    new: nn.Module
    if type(head) is nn.Linear:
        new = nn.Linear(head.in_features, classes, bias=head.bias is not None)
    elif type(head) is nn.Conv2d and head.groups == 1:
        shape = (head.kernel_size, head.stride, head.padding, head.dilation)
        like = {"bias": head.bias is not None, "padding_mode": head.padding_mode}
        new = nn.Conv2d(head.in_channels, classes, *shape, **like)  # type: ignore[arg-type]
    else:
        raise UserError(f"a head of {type(head).__name__} has no new classes; {BEFORE}")
    return new.to(head.get_parameter("weight")).train(head.training)
