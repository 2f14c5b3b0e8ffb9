"""Networks by name: `create("wrn28_10", classes=100, members=2)`."""

import re

from mixmo.models import preact_resnet, resnet, wrn
from mixmo.models.cost import multiply_adds, parameters, training_bytes
from mixmo.models.network import Ensemble, Network, Parts
from mixmo.utils.errors import UserError, check_whole, quoted, unknown
from mixmo.utils.memory import advised

__all__ = ["FAMILIES", "Ensemble", "Network", "Parts", "create", "multiply_adds", "parameters", "training_bytes"]

DEEPEST, MOST_MEMBERS = 10_000, 1_000
MOST_CLASSES, MOST_CHANNELS = 10_000_000, 10_000
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
    """Create a network by family, depth and width, with new weights.

    >>> create("wrn16_2", classes=10, members=2).heads[1].out_features
    10

    Args:
        name: Family, depth, underscore, width: `wrn28_10`, `preactresnet18_2`, `resnet18_5`.
        classes: Number of classes.
        members: Images read per forward pass, M.
        encoders: Number of encoders: one per member, or 1 shared by all (paper, table 3).
        heads: Number of heads: one per member, or 1 shared by all.
        concat: Concatenate the encodings (Aggregated Learning) instead of mixing them.
        channels: Image channels.

    Returns:
        The network.

    Raises:
        UserError: If there is no such network, or a number is out of range.
    """
    match = re.fullmatch(r"(\D.*?)(\d{1,9})_(\d{1,9})", str(name))
    if not match:
        raise UserError(f"model {quoted(name)} is not of the form family, depth, _, width; for example wrn28_10")
    if match[1] not in FAMILIES:
        raise unknown("model family", match[1], FAMILIES)
    if len(match[2] + match[3]) > 8:
        raise UserError(f"model {quoted(name)} has a depth or width of too many digits; for example wrn28_10")
    depth, width = int(match[2]), int(match[3])
    for what, count in (("width", width), ("members", members)):
        check_whole(what, count)
    check_whole("classes", classes, most=MOST_CLASSES)
    check_whole("channels", channels, most=MOST_CHANNELS)
    if depth > DEEPEST or members > MOST_MEMBERS:
        raise UserError(f"depth = {depth}, members = {members}; give at most {DEEPEST} and {MOST_MEMBERS}")
    encoders, heads = (members if count is None else count for count in (encoders, heads))
    if not {encoders, heads} <= {1, members}:
        raise UserError(
            f"encoders = {quoted(encoders)}, heads = {quoted(heads)}; take one per member, or 1 shared by all"
        )
    parts = FAMILIES[match[1]](depth, width)
    with advised(f"give a smaller width than that of {name}, or fewer classes, members or channels"):
        return Network(
            [parts.encoder(channels) for _ in range(encoders)],
            parts.core(parts.encoded * (members if concat else 1)),
            [parts.head(classes) for _ in range(heads)],
            members=members,
            stride=parts.stride,
            concat=concat,
            name=name,
        )
