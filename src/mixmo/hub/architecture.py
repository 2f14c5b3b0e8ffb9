"""How a network is built: as a dictionary for JSON, and back."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from mixmo.hub.backbones import made_by, make
from mixmo.models import Ensemble, Network, create
from mixmo.models.network import channels
from mixmo.storage.weights import shapes
from mixmo.surgery.fold import fold, folded_copy
from mixmo.surgery.hollow import check_backbone
from mixmo.surgery.wrap import wrap
from mixmo.surgery.wrapped import Wrapped
from mixmo.utils.errors import UserError


def describe(net: Ensemble) -> list[dict[str, Any]]:
    """Return architectures that may build this network, the likeliest first; the last one needs the bare model."""
    folded = net.members == 1 and net.num_heads > 1
    members = net.num_heads if folded else net.members
    if isinstance(net, Network):
        return [{"create": _name(net, members), "folded": folded, **_arguments(net, members)}]
    if not isinstance(net, Wrapped):
        raise UserError(f"a {type(net).__name__} cannot be saved; give a network of mixmo.create or mixmo.wrap")
    wrapping = {
        "wrap": {"members": members, "stem": list(net.stems), "head": list(net.heads), "size": list(net.size)},
        "folded": folded,
        "backbone": type(net.backbone).__name__,
    }
    return [*(wrapping | made for made in made_by(net)), wrapping]


def build(architecture: dict[str, Any], stored: Mapping[str, torch.Size], model: nn.Module | None = None) -> Ensemble:
    """Build a network without its trained weights, which have the shapes `stored`.

    The architecture may be untrusted: a network of `mixmo.create` is built on the meta device, and a backbone first
    without its weights, to see that it has no more of them than are stored. `model` is the bare backbone, for one that
    no library makes.
    """
    if "create" in architecture:
        given = {key: value for key, value in architecture.items() if key not in ("create", "folded")}
        with torch.device("meta"):
            net: Ensemble = create(architecture["create"], **given)
            return folded_copy(net) if architecture["folded"] else net
    given = architecture["wrap"]
    check_backbone(lambda: make(architecture), given["members"], given["size"], stored)
    bare = make(architecture) if model is None else model
    net = wrap(bare, given["members"], stem=given["stem"], head=given["head"], size=tuple(given["size"]))
    return fold(net) if architecture["folded"] else net


def _arguments(net: Network, members: int) -> dict[str, Any]:
    encoders, heads = len(net.encoders), len(net.heads)
    return {
        "classes": class_count(net),
        "members": members,
        "encoders": None if net.members < members or encoders == members else encoders,
        "heads": None if heads == members else heads,
        "concat": net.concat,
        "channels": channels(net),
    }


def _name(net: Network, members: int) -> str:
    if None not in (net.name, class_count(net), channels(net)):
        with torch.device("meta"):
            if shapes(create(str(net.name), **_arguments(net, members)).core) == shapes(net.core):
                return str(net.name)
    raise UserError("mixmo.create does not make this network; save one of mixmo.create or mixmo.wrap")


def class_count(net: Network) -> int | None:
    """Return the outputs of the last dense layer of a head; None if your own network has none."""
    found = [layer.out_features for layer in net.heads[0].modules() if isinstance(layer, nn.Linear)]
    return found[-1] if found else None
