"""How a network is built, as JSON can hold it, and back."""

from typing import Any

import torch
from torch import nn

from mixmo.hub.backbones import made_by, make
from mixmo.models import Ensemble, Network, create
from mixmo.models.network import channels
from mixmo.storage.weights import shapes
from mixmo.surgery.fold import fold
from mixmo.surgery.wrap import Wrapped, wrap
from mixmo.utils.errors import UserError


def describe(net: Ensemble) -> list[dict[str, Any]]:
    """What may build a network like this one, the likeliest first; the last needs the bare model to be given."""
    folded = net.members == 1 and net.answers > 1
    members = net.answers if folded else net.members
    if isinstance(net, Network):
        return [{"create": check_name(net, members), "folded": folded, **arguments(net, members)}]
    if not isinstance(net, Wrapped):
        raise UserError(f"a {type(net).__name__} is neither of mixmo.create nor of mixmo.wrap; save one of these")
    wrapping = {
        "wrap": {"members": members, "stem": list(net.stems), "head": list(net.heads), "size": list(net.size)},
        "folded": folded,
        "backbone": type(net.backbone).__name__,
    }
    return [*(wrapping | made for made in made_by(net)), wrapping]


def build(architecture: dict[str, Any], model: nn.Module | None = None) -> Ensemble:
    """A network of this architecture, to be filled; `model` is the bare backbone, for one that no library makes."""
    if "create" in architecture:
        given = {key: value for key, value in architecture.items() if key not in ("create", "folded")}
        # Drawing initial weights takes longer than reading the trained ones; folding needs some.
        with torch.device("cpu" if architecture["folded"] else "meta"):
            net: Ensemble = create(architecture["create"], **given)
    else:
        about = architecture["wrap"]
        bare = make(architecture) if model is None else model
        try:
            net = wrap(bare, about["members"], stem=about["stem"], head=about["head"], size=tuple(about["size"]))
        except UserError as error:
            raise UserError(
                f"this is not the {architecture['backbone']} that the network was wrapped around: {error}"
            ) from error
    return fold(net) if architecture["folded"] else net


def arguments(net: Network, members: int) -> dict[str, Any]:
    """The arguments of `create` but for the name, read off the network."""
    encoders, heads = len(net.encoders), len(net.heads)
    return {
        "classes": classes(net),
        "members": members,
        "encoders": None if net.members < members or encoders == members else encoders,
        "heads": None if heads == members else heads,
        "concat": net.concat,
        "channels": channels(net),
    }


def check_name(net: Network, members: int) -> str:
    """The name by which `create` made it; refused where its core has become another since."""
    if None not in (net.name, classes(net), channels(net)):
        with torch.device("meta"):
            if shapes(create(str(net.name), **arguments(net, members)).core) == shapes(net.core):
                return str(net.name)
    raise UserError("this network is none that mixmo.create makes; save one of mixmo.create or of mixmo.wrap")


def classes(net: Network) -> int | None:
    """What the last dense layer of a head gives; None where a network of one's own has none."""
    found = [layer.out_features for layer in net.heads[0].modules() if isinstance(layer, nn.Linear)]
    return found[-1] if found else None
