"""Backbones of timm and torchvision: the name of the one in a wrapped network, and the model by its name."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import torch
from torch import nn

from mixmo.storage.weights import shapes
from mixmo.surgery.hollow import Hollow
from mixmo.surgery.libraries import make_model
from mixmo.surgery.wrapped import Wrapped
from mixmo.utils.errors import UserError, quoted

OPTIONS = {  # that a saved network may have; others read files
    "timm": ("num_classes", "in_chans", "img_size"),
    "torchvision": ("num_classes", "image_size"),
}


def library(architecture: dict[str, Any]) -> str | None:
    """Return the library that makes the backbone; None if the bare model must be given."""
    return next((name for name in OPTIONS if name in architecture), None)


def make(architecture: dict[str, Any]) -> nn.Module:
    """Return the bare model by its name."""
    source = library(architecture)
    if source is None:
        raise UserError(f"mixmo cannot build a {architecture['backbone']}; give the bare model by model=")
    name, options = architecture[source], architecture["options"]
    if not set(options) <= set(OPTIONS[source]):
        given = f"{quoted(name)} with {quoted(', '.join(options))}"
        raise UserError(f"{source}'s {given} is not of this version; install a newer mixmo")
    return make_model(source, name, options)


def made_by(net: Wrapped) -> Iterator[dict[str, Any]]:
    """Yield names in a library, and options, that may make the backbone of a network; the likeliest first.

    timm's models hold their names. torchvision's are found by the shapes of their weights, among those of one file.
    """
    options: dict[str, Any] = {"num_classes": net.classes}
    cfg = getattr(net.backbone, "pretrained_cfg", None) or {}
    if name := cfg.get("architecture") if isinstance(cfg, dict) else getattr(cfg, "architecture", None):
        plain = options | {"in_chans": net.size[0]}
        yield from ({"timm": name, "options": given} for given in (plain, plain | {"img_size": list(net.size[1:])}))
    home = type(net.backbone).__module__
    if not home.startswith("torchvision.models."):
        return
    from torchvision import models

    ours = _between(net, net.backbone)
    names = [n for n in models.list_models(module=models) if models.get_model_builder(n).__module__ == home]
    for name, given in product(names, (options, options | {"image_size": net.size[1]})):
        made = {"torchvision": name, "options": given}
        fits = False
        with suppress(UserError), Hollow():
            fits = _between(net, make(made)) == ours
        if fits:
            yield made


def _between(net: Wrapped, backbone: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of all weights except those of stems and heads."""
    ends = tuple(f"{name}." for name in (*net.stems, *net.heads))
    return {name: shape for name, shape in shapes(backbone).items() if not name.startswith(ends)}
