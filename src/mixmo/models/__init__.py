"""Networks by name: `create("wrn28_10", classes=100, members=2)`."""

import math
import re
from collections.abc import Callable

import torch
from torch import nn

from mixmo.models import preact_resnet, resnet, wrn
from mixmo.models.cost import multiply_adds, parameters, training_bytes
from mixmo.models.network import Ensemble, Network, Parts
from mixmo.utils import memory
from mixmo.utils.errors import UserError, check_members, check_whole, unknown

__all__ = [
    "FAMILIES",
    "Ensemble",
    "Network",
    "Parts",
    "create",
    "multiply_adds",
    "parameters",
    "training_bytes",
]

FAMILIES = {"wrn": wrn.wrn, "preactresnet": preact_resnet.preactresnet, "resnet": resnet.resnet}


def create(
    name: str,
    classes: int,
    members: int = 2,
    *,
    encoders: int | None = None,
    heads: int | None = None,
    concat: bool = False,
    channels: int = 3,
) -> Network:
    """A network by family, depth and width, such as `wrn28_10`, `preactresnet18_2` or `resnet18_5`.

    `members` inputs are read at once. `encoders` and `heads` default to one each a member; one of them can be shared by
    setting it to 1 (paper, table 3). `concat` concatenates the encodings instead of summing them.

    >>> create("wrn16_2", classes=10, members=2).heads[1].out_features
    10
    """
    match = re.fullmatch(r"(\D.*?)(\d+)_(\d+)", str(name))
    if not match:
        raise UserError(f"model '{name}' is not of the form family, depth, _, width; say for example wrn28_10")
    family, depth, width = match[1], int(match[2]), int(match[3])
    if family not in FAMILIES:
        raise unknown("model family", family, FAMILIES)
    check_members(members)
    for what, number in (("width", width), ("classes", classes), ("channels", channels)):
        check_whole(what, number)
    parts = FAMILIES[family](depth, width)
    encoders, heads = (members if count is None else count for count in (encoders, heads))
    for what, count in (("encoders", encoders), ("heads", heads)):
        if count not in (1, members):
            raise UserError(f"{what} = {count}; take one each of the {members} members, or 1 shared by all")

    def build() -> Network:
        stems: list[nn.Module] = [parts.encoder(channels) for _ in range(encoders)]
        core = parts.core(parts.encoded * (members if concat else 1))
        tops: list[nn.Module] = [parts.head(classes) for _ in range(heads)]
        return Network(stems, core, tops, members=members, stride=parts.stride, concat=concat, name=name)

    _check_weights(name, build)
    return build()


def _check_weights(name: str, build: Callable[[], Network]) -> None:
    """Refuses a network that no memory here can hold, by one without storage."""
    needed = math.inf
    try:
        with torch.device("meta"):
            needed = memory.weights(build())
    except (RuntimeError, TypeError) as error:
        if "verflow" not in str(error):  # too many even to be counted
            raise
    remedy = "take a smaller width or depth, or fewer classes"
    memory.check(needed, torch.get_default_device(), f"the weights of {name}", remedy)
