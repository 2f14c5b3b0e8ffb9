"""Any image classifier as an ensemble of M members: `wrap(timm.create_model("resnet50"), members=2)`."""

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import nn

from mixmo.surgery.find import Stem, find_heads, find_stems, replace
from mixmo.surgery.layers import Encoders, Heads
from mixmo.surgery.probe import Size, Trial, at_rest, check_size, close, try_out
from mixmo.surgery.sharing import APART, check_apart, perturbed, repeated, split, spread
from mixmo.surgery.trainability import check_training
from mixmo.surgery.unwrap import bare, check_model, duplicate
from mixmo.surgery.wrapped import Wrapped
from mixmo.utils.errors import UserError, check_members

__all__ = ["Wrapped", "wrap"]


@torch.inference_mode(False)  # the stem is found by gradients
def wrap(
    model: nn.Module,
    members: int = 2,
    *,
    stem: str | Sequence[str] | None = None,
    head: str | Sequence[str] | None = None,
    size: Size | None = None,
    apart: float = APART,
) -> Wrapped:
    """A copy of an image classifier that reads M images at once: M stems, the mixing block, M heads, one core.

    Its weights are kept: every head gives the model's own answer to one image given M times, before training. The stems
    are W / M, with channels stronger in one and weaker in the others, by which the members can become different; the
    heads are copies.

    The stem (first convolution or patch embedding) and the head (last layer with K outputs) are found by running the
    model on two random images.

    stem, head: names of these layers, where they cannot be found; several where the model has several.
    size: (C, H, W) of an image that the model takes, where it does not say.
    apart: how far the members begin from one another, from 0 (alike) to 1 (each stem with channels of its own).

    >>> own = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    >>> net = wrap(own, members=2)
    >>> net.stems, net.heads, net.each(torch.zeros(4, 3, 32, 32)).shape
    (('0',), ('4',), torch.Size([2, 4, 10]))
    """
    model = bare(model)
    check_members(members)
    check_apart(apart)
    check_size(size)
    check_model(model)
    backbone = duplicate(model)
    with at_rest(backbone):
        trial = try_out(backbone, size)
        stems = find_stems(backbone, trial, _names(stem, "stem"))
        heads = find_heads(backbone, trial, _names(head, "head"))
    both = {found.name for found in stems} & {last.name for last in heads}
    if both:
        raise UserError(f"'{min(both)}' is the model's first layer and its last; MixMo needs some between them")
    check_training(backbone, trial, [found.name for found in stems], chosen=head is not None)
    for found in stems:
        replace(backbone, found.name, _encoders(backbone.get_submodule(found.name), found, members, apart))
    for last in heads:
        layer = backbone.get_submodule(last.name)
        replace(backbone, last.name, Heads(repeated([layer], members), last.dim, last.follows))
    net = Wrapped(
        backbone,
        members=members,
        classes=trial.logits.shape[1],
        stride=stems[0].stride,
        size=trial.size,
        stems=[found.name for found in stems],
        heads=[last.name for last in heads],
        direct=[found.direct for found in stems],
    )
    net.training = model.training
    if _alike(net, trial):
        return net
    if trial.images.dtype != torch.float64:
        # Deep networks of random weights can blow rounding up to more than `close` allows: float64 tells.
        with suppress(UserError):
            wrap(duplicate(model).double(), members, stem=stem, head=head, size=size, apart=apart)
            return net
    raise UserError(
        f"with stem '{', '.join(net.stems)}' and head '{', '.join(net.heads)}' the members do not answer as "
        "the model did; name its stem and head by stem= and head="
    )


def _names(given: str | Sequence[str] | None, role: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = (given,) if isinstance(given, str) or not isinstance(given, Sequence) else tuple(given)
    for name in names:
        if not isinstance(name, str):
            raise UserError(
                f"{role} is a {type(name).__name__}; give the layer's name, as model.named_modules() has it"
            )
    return names


def _encoders(layer: nn.Module, stem: Stem, members: int, apart: float) -> Encoders:
    """M stems that start as the given one: shared out where that is linear in its weights, else averaged."""
    one, other = split(layer)
    with at_rest(layer, one, other), torch.no_grad():
        linear = close(one(stem.input) + other(stem.input), layer(stem.input))
    if linear:
        return Encoders(spread([layer], members, apart), stem.layout)
    return Encoders(perturbed(layer, members, apart), stem.layout, linear=False)


def _alike(net: Wrapped, trial: Trial) -> bool:
    """Whether the heads answer as the model did. Refuses a network that goes past its stems."""
    with at_rest(net), torch.no_grad():
        for stem in net.stems:
            net.before(stem, trial.images.clone())
        answers = net.each(trial.images.clone())
        together = net.read(trial.images.expand(net.members, *trial.images.shape))
    return all(close(result, trial.logits.expand_as(result)) for result in (answers, together))
