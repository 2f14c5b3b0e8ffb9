"""Any image classifier as an ensemble of M members: `wrap(timm.create_model("resnet50"), members=2)`."""

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import nn

from mixmo.surgery.find import Stem, find_heads, find_stems, replace
from mixmo.surgery.layers import Encoders, Heads
from mixmo.surgery.probe import Size, Trial, check_size, close, frozen, run_trial
from mixmo.surgery.sharing import DIVERSITY, check_diversity, perturbed, repeated, split, spread
from mixmo.surgery.trainability import make_trainable
from mixmo.surgery.unwrap import check_model, copy_model, unwrap
from mixmo.surgery.wrapped import Wrapped
from mixmo.utils.errors import UserError, check_whole


@torch.inference_mode(False)  # the stem is found by gradients
def wrap(
    model: nn.Module,
    members: int = 2,
    *,
    stem: str | Sequence[str] | None = None,
    head: str | Sequence[str] | None = None,
    size: Size | None = None,
    diversity: float = DIVERSITY,
) -> Wrapped:
    """Return a copy of an image classifier that reads M images per pass: M stems, the mixing block, one core, M heads.

    Pretrained weights are kept: before training, every head predicts exactly as the model does. The stems are W / M,
    with channels stronger in one and weaker in the others, from which the members can become diverse; the heads are
    copies. The stem (first convolution or patch embedding) and the head (last layer with K outputs) are found by
    running the model on two random images.

    Args:
        model: A classifier, images (N, C, H, W) to logits (N, K): of timm, torchvision, transformers or your own. It is
            left unchanged; one that is compiled or data-parallel is taken out of its wrapper.
        members: Number of members M.
        stem: Name of the stem in `model.named_modules()`, where it is not found; several if the model has several.
        head: Name of the head, where it is not found or is one of several.
        size: (C, H, W) of an image that the model takes, where it declares none.
        diversity: Initial diversity of the members, from 0 (identical stems) to 1 (each stem has channels of its own).

    Returns:
        The wrapped network: train it on a `Mix`, predict with `mixmo.predict`.

    Raises:
        UserError: If the model is no classifier, or its stem or head is not found.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    >>> wrap(model, members=2).each(torch.zeros(4, 3, 32, 32)).shape
    torch.Size([2, 4, 10])
    """
    model = unwrap(model)
    check_model(model)
    check_whole("members", members)
    check_size(size)
    check_diversity(diversity)
    backbone = copy_model(model)
    with frozen(backbone):
        trial = run_trial(backbone, size)
        stems = find_stems(backbone, trial, _names(stem))
        heads = find_heads(backbone, trial, _names(head))
    make_trainable(backbone, trial, [found.name for found in stems], head_given=head is not None)
    for found in stems:
        replace(backbone, found.name, _encoders(backbone.get_submodule(found.name), found, members, diversity))
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
    if _predicts_alike(net, trial):
        return net
    if trial.images.dtype != torch.float64:
        # Deep networks of random weights can amplify rounding beyond what `close` allows: float64 decides.
        with suppress(UserError):
            wrap(copy_model(model).double(), members, stem=stem, head=head, size=size, diversity=diversity)
            return net
    found_layers = f"stem '{', '.join(net.stems)}' and head '{', '.join(net.heads)}'"
    problem = f"with {found_layers} the members do not predict as the model does"
    raise UserError(f"{problem}; name others by stem (--stem) and head (--head)")


def _names(given: str | Sequence[str] | None) -> Sequence[str] | None:
    return given if given is None or isinstance(given, tuple | list) else [given]  # type: ignore[list-item]


def _encoders(layer: nn.Module, stem: Stem, members: int, diversity: float) -> Encoders:
    """Return M stems that start as the given one, shared out where that is linear in its weights."""
    one, other = split(layer)
    with frozen(layer, one, other), torch.no_grad():
        linear = close(one(stem.input) + other(stem.input), layer(stem.input))
    if linear:
        return Encoders(spread([layer], members, diversity), stem.layout)
    return Encoders(perturbed(layer, members, diversity), stem.layout, linear=False)


def _predicts_alike(net: Wrapped, trial: Trial) -> bool:
    """Return whether every head predicts as the model did, for one image per pass and for M equal ones."""
    with frozen(net), torch.no_grad():
        for stem in net.stems:
            net.before_stem(stem, trial.images.clone())
        each = net.each(trial.images.clone())
        together = net.read(trial.images.expand(net.members, *trial.images.shape))
    return all(close(logits, trial.logits.expand_as(logits)) for logits in (each, together))
