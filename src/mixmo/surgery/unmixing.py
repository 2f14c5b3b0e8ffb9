"""Prepare a network for unmixing: each head pools the last feature maps under its own mask (`Mix.visible`)."""

import torch
from torch import Tensor

from mixmo.models.calls import Call, calls
from mixmo.models.network import Ensemble, Network
from mixmo.surgery.find import replace
from mixmo.surgery.layers import Pooling
from mixmo.surgery.probe import frozen, random_images
from mixmo.surgery.wrapped import Wrapped
from mixmo.utils.errors import UserError

MASK = 8  # side of the masks of the check


def enable_unmixing(net: Ensemble) -> None:
    """Find the pooling that unmixing replaces, in place; without a mask the network computes exactly as before.

    Raises:
        UserError: If the network does not average its last feature maps by a module of its own, as ViTs.
    """
    if isinstance(net, Network) and hasattr(net.core, "maps") and len(net.heads) == net.members:
        return
    if not isinstance(net, Wrapped):
        raise UserError("unmix needs one head per member and a core with the method `maps`; set unmix = none")
    if net.pool is not None or net.members == 1:  # a single image needs no mask
        return
    with frozen(net), torch.no_grad():
        images = random_images(net, net.size)
        found = _last_pooling(net, images)
        if found is not None:
            pool, layout = net.backbone.get_submodule(found.name), _layout(found)
            assert layout is not None
            replace(net.backbone, found.name, Pooling(pool, layout, found.output.dim() == 2))
            net.pool = found.name
            if _unmixes(net, images):
                return
            replace(net.backbone, found.name, pool)
            net.pool = None
    reason = "no module, such as nn.AdaptiveAvgPool2d, averages its last feature maps of several positions"
    raise UserError(f"for images of {net.size} the backbone cannot unmix: {reason}; set unmix = none")


def _last_pooling(net: Wrapped, images: Tensor) -> Call | None:
    """Return the last call of a layer without weights that averages feature maps over their positions."""
    layers = {name: layer for name, layer in net.backbone.named_modules() if name and not list(layer.parameters())}
    _, seen = calls(net.backbone, layers, images)
    found = next((call for call in reversed(seen) if _layout(call)), None)
    return found if found and sum(call.name == found.name for call in seen) == 1 else None


def _layout(call: Call) -> str | None:
    """Return the layout of the maps that a call averages; None if it does not."""
    if call.input.dim() != 4 or call.output.dim() not in (2, 4):
        return None
    for layout, sides in (("NCHW", (2, 3)), ("NHWC", (1, 2))):
        mean = call.input.mean(sides, keepdim=call.output.dim() == 4)
        several = call.input.shape[sides[0]] * call.input.shape[sides[1]] > 1
        if several and mean.shape == call.output.shape and _equal(call.output, mean):
            return layout
    return None


def _unmixes(net: Wrapped, images: Tensor) -> bool:
    """Return whether an even mask leaves the logits as they are, and another one changes them."""
    both = images.expand(net.members, *images.shape)
    even = torch.ones(net.members, len(images), 1, MASK, MASK, device=images.device)
    uneven = torch.rand(even.shape, generator=torch.Generator().manual_seed(0)).to(even)
    try:
        plain, same, other = net.read(both), net.read(both, visible=even), net.read(both, visible=uneven)
    except Exception:  # whatever a model raises for a batch of another size after its pooling
        return False
    return _equal(same, plain) and not torch.equal(same, other)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two outputs are equal up to rounding, also where both are tiny, as in some untrained networks."""
    return bool((a - b).abs().max() <= 1e-3 * b.abs().max())
