"""Backbones by name: timm/NAME, torchvision/NAME or module:function."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mixmo.models.metadata import About
from mixmo.surgery import user_models
from mixmo.surgery.convert import convert
from mixmo.surgery.libraries import LIBRARIES, make_fitting, normalisation, published_weights, renamed
from mixmo.surgery.unwrap import check_model
from mixmo.surgery.weight_files import check_filled, fill, read_weights
from mixmo.surgery.wrap import wrap
from mixmo.surgery.wrapped import Wrapped
from mixmo.utils.errors import UserError

BACKBONES = re.compile(r"(timm|torchvision)/.+|[\w.]+:\w+")
FORMS = {  # the same in words
    "timm/NAME": "A model of timm (`timm.list_models()`), wrapped as M members; see `mixmo list recipes finetune`.",
    "torchvision/NAME": "A model of torchvision (`torchvision.models.list_models()`), likewise.",
    "module:function": "Your own function that returns a model, likewise.",
}


def wrap_backbone(
    name: str,
    classes: int,
    size: tuple[int, int, int],
    *,
    members: int,
    stem: str | None = None,
    head: str | None = None,
    diversity: float = 0.5,
    drop_path: float = 0.0,
    pretrained: bool = False,
    weights: str | None = None,
) -> Wrapped:
    """Return a backbone by name as a network of M members, initialised from torch's global random generator.

    Without `pretrained` and `weights` nothing is downloaded or read, and names and shapes of the weights are the same.
    With them, `about` holds the normalisation that the weights were trained with, where it is known.

    Args:
        name: timm/NAME, torchvision/NAME, or module:function, which must be allowed (`mixmo.surgery.user_models`). The
            function gets those of num_classes, in_chans, img_size, drop_path_rate and pretrained that it has
            parameters for.
        classes: Number of classes K.
        size: (C, H, W) of the images.
        members: Number of members M.
        stem: Name of the stem; by default it is found automatically.
        head: Name of the head; by default it is found automatically.
        diversity: Initial diversity of the members; see `mixmo.wrap`.
        drop_path: Drop path rate.
        pretrained: Read the weights that the library publishes; a head of other classes is new. A function without
            this parameter returns the model with the weights to start from.
        weights: File of weights to read instead.

    Raises:
        UserError: If there is no such model, it does not fit the images, it cannot be wrapped, or the weights cannot
            be read or do not fit.
    """
    library, _, short = name.partition("/")
    state: dict[str, Tensor] = {}
    try:
        if library in LIBRARIES:
            model, options = make_fitting(library, short, classes, size, drop_path)
            state = published_weights(library, short, options) if pretrained else state
        else:
            model = _user_model(name, classes, size, drop_path, pretrained)
        if weights is not None:
            state = renamed(model, read_weights(weights, model.state_dict()))
        misfits = fill(model, state) if state else {}
        net = wrap(model, members, stem=stem, head=head, size=size, diversity=diversity)
        check_filled(misfits, (*net.heads, *_auxiliary(net, model)), model.state_dict(), state)
        if net.classes != classes:
            net = convert(net, classes=classes)
        elif misfits or not state:
            _renew_heads(net)
        if pretrained or weights is not None:
            net.about = _metadata(size, normalisation(name, model))
    except UserError as error:
        raise UserError(f"model = {name}: {error}") from error
    return net


def _user_model(name: str, classes: int, size: tuple[int, int, int], drop_path: float, pretrained: bool) -> nn.Module:
    channels, height, width = size
    wanted: dict[str, Any] = {
        "num_classes": classes,
        "in_chans": channels,
        "img_size": height if height == width else (height, width),
        "drop_path_rate": drop_path,
        "pretrained": pretrained,  # also if not: what is loaded later must not be downloaded
    }
    needed = {"drop_path_rate": "leave drop_path out"} if drop_path else {}
    model: nn.Module = user_models.call(name, wanted, needed)
    check_model(model)
    return model


def _auxiliary(net: Wrapped, model: nn.Module) -> set[str]:
    """Return the weights that wrapping froze: of heads beside the one that was named (GoogLeNet, Inception)."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {name for name, p in net.backbone.named_parameters() if name in trained and not p.requires_grad}


def _renew_heads(net: Wrapped) -> None:
    """Shuffle the random weights of new heads: copies of one would make the members alike."""
    with torch.no_grad():
        for copy in (copy for name in net.heads for copy in net.heads_at(name).copies[1:]):
            for weight in copy.parameters():
                weight.copy_(weight.flatten()[torch.randperm(weight.numel())].view_as(weight))


def _metadata(size: tuple[int, int, int], known: tuple[Sequence[float], Sequence[float]] | None) -> About | None:
    """Return how the weights' images were normalised; images of other than three channels take the mean over them."""
    if known is None:
        return None
    channels = size[0]
    mean, std = (tuple(v) if len(v) == channels else (sum(v) / len(v),) * channels for v in known)
    return About(size, mean, std)
