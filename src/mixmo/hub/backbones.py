"""The libraries that make a bare backbone by its name, and what they call the one in a wrapped network."""

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from mixmo.storage.weights import shapes
from mixmo.surgery.wrap import Wrapped
from mixmo.utils.errors import UserError, first_line

OPTIONS = {  # that a saved network may give; there are others that read files
    "timm": ("num_classes", "in_chans", "img_size"),
    "torchvision": ("num_classes", "image_size"),
}
INSTALL = {"timm": "pip install 'mixmo[timm]'", "torchvision": "pip install torchvision"}


def library(architecture: dict[str, Any]) -> str | None:
    """The one that makes the backbone of this architecture; None where the bare model must be given."""
    return next((name for name in OPTIONS if name in architecture), None)


def made_by(net: Wrapped) -> Iterator[dict[str, Any]]:
    """What may make the backbone of a network, the likeliest first: a name in a library, and options."""
    for name, options in _timm(net):
        yield {"timm": name, "options": options}
    for name, options in _torchvision(net):
        yield {"torchvision": name, "options": options}


def make(architecture: dict[str, Any]) -> nn.Module:
    """The bare model by its name."""
    source = library(architecture)
    if source is None:
        raise UserError(
            f"this network was wrapped around a {architecture['backbone']} that mixmo cannot build; "
            "give the bare model: from_pretrained(..., model=...)"
        )
    try:
        module = importlib.import_module(source)
    except (ImportError, RuntimeError) as error:  # the latter where torch and torchvision are of different builds
        raise UserError(
            f"this network is built by {source}, which cannot be imported ({first_line(error)}); {INSTALL[source]}"
        ) from error
    name, options = architecture[source], architecture["options"]
    known = module.is_model(name) if source == "timm" else name in module.models.list_models(module=module.models)
    if not known:  # also: no address that timm would download from
        raise UserError(f"this {source} knows no '{name}'; install the version that the network was made with")
    if foreign := [option for option in options if option not in OPTIONS[source]]:
        allowed = ", ".join(OPTIONS[source])
        raise UserError(f"'{foreign[0]}' is no option of a saved network ({allowed} are); save it again")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they say of initial weights, which are replaced
            bare: nn.Module = (
                module.create_model(name, pretrained=False, **options)
                if source == "timm"
                else module.models.get_model(name, weights=None, **options)
            )
        return bare
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        said = " ".join(str(error).split())
        raise UserError(f"{source}'s '{name}' does not take {', '.join(options)} ({said})") from error


def _timm(net: Wrapped) -> Iterator[tuple[str, dict[str, Any]]]:
    """Its models know their names."""
    cfg = getattr(net.backbone, "pretrained_cfg", None) or {}
    name = cfg.get("architecture") if isinstance(cfg, dict) else getattr(cfg, "architecture", None)
    if name:
        options = {"num_classes": net.classes, "in_chans": net.size[0]}
        yield from ((name, given) for given in (options, options | {"img_size": list(net.size[1:])}))


def _torchvision(net: Wrapped) -> Iterator[tuple[str, dict[str, Any]]]:
    """Its models do not, but are told apart by the shapes of their weights, among those of one file."""
    home = type(net.backbone).__module__
    if not home.startswith("torchvision.models."):
        return
    from torchvision import models

    ours = _between(net, net.backbone)
    for name in models.list_models(module=models):
        for options in ({"num_classes": net.classes}, {"num_classes": net.classes, "image_size": net.size[1]}):
            if models.get_model_builder(name).__module__ == home:
                try:
                    with _Hollow():
                        bare = make({"torchvision": name, "options": options})
                except UserError:
                    continue
                if _between(net, bare) == ours:
                    yield name, options


class _Hollow(TorchFunctionMode):
    """Weights without storage: layers take theirs from torch.empty. What RegNet computes its widths with stays."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}) | ({"device": "meta"} if function is torch.empty else {}))


def _between(net: Wrapped, backbone: nn.Module) -> dict[str, torch.Size]:
    """The shapes of all weights but those of stems and heads."""
    ends = tuple(f"{name}." for name in (*net.stems, *net.heads))
    return {name: shape for name, shape in shapes(backbone).items() if not name.startswith(ends)}
