"""Use of the filters of a network (paper, "From manifold mixing to MixMo" and "Filters activity").

The importance of a filter, of shape (input channels, k, k), is its l1 norm, as in structured pruning.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mixmo.models import Ensemble, Network
from mixmo.surgery.wrapped import Wrapped
from mixmo.utils.errors import UserError

LAYERS = (nn.Conv2d, nn.Linear)  # with one filter per channel of their output
SHORTCUTS = {"shortcut", "downsample"}  # names of the layers beside the main path of residual blocks, ours and others'


class Activity(NamedTuple):
    """Active filters of a core network at one threshold."""

    threshold: float  # t_a
    layers: dict[str, float]  # share of active filters of each layer
    by_layer: float  # mean over layers of each layer's share: what the published table holds
    by_filter: float  # share of all filters pooled: what the paper's text says; wide layers count for more


def l1_norms(weight: Tensor) -> Tensor:
    """Return the l1 norm of each filter of a convolution, (filters,)."""
    return weight.detach().flatten(1).abs().sum(1)


def encoders(net: Ensemble) -> Sequence[nn.Module]:
    """Return the encoders of a network; of a backbone with several stems, those of the first."""
    if isinstance(net, Wrapped):
        return list(net.encoders_at(net.stems[0]).copies)
    assert isinstance(net, Network)
    return list(net.encoders)


def encoder_norms(net: Ensemble) -> Tensor:
    """Return the l1 norms of the encoders' filters, (encoders, channels), as the paper shows them."""
    layers = [[layer for layer in encoder.modules() if isinstance(layer, LAYERS)] for encoder in encoders(net)]
    if not all(layers):
        raise UserError("an encoder of the network has no convolution, so it has no filters to measure")
    return torch.stack([l1_norms(first.weight) for first, *_ in layers])


def separation(norms_MC: Tensor) -> float:
    """Measure how separate the members' channels are: 1 if no two members share a channel, 0 if all use them alike.

    With q_mc = n_mc / sum_c n_mc, the share of member m's total norm that lies in channel c, two members overlap by
    sum_c min(q_ic, q_jc). The separation is 1 minus the overlap, which is the total variation distance of q_i and q_j,
    averaged over all pairs. Scaling an encoder changes nothing.
    """
    members, norms_MC = len(norms_MC), norms_MC.double()
    share_MC = norms_MC / norms_MC.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    overlap_MM = torch.minimum(share_MC[:, None], share_MC).sum(2)
    i, j = torch.triu_indices(members, members, offset=1)
    return min(1.0, max(0.0, 1 - overlap_MM[i, j].mean().item()))


def core_norms(net: Ensemble) -> dict[str, Tensor]:
    """Return the l1 norms of the filters of every layer of the core network, without shortcuts, as published.

    Of a backbone, these are the layers between stems and heads.
    """
    core = net.backbone if isinstance(net, Wrapped) else net.get_submodule("core")
    ends = tuple(f"{name}." for name in (*net.stems, *net.heads)) if isinstance(net, Wrapped) else ()
    norms = {
        name: l1_norms(layer.weight)
        for name, layer in core.named_modules()
        if isinstance(layer, LAYERS) and not name.startswith(ends) and not set(name.split(".")) & SHORTCUTS
    }
    if not norms:
        raise UserError("the network has no layer between encoders and heads, so it has no filters to measure")
    return norms


def activity(norms: Mapping[str, Tensor], threshold: float) -> Activity:
    """Count the active filters at threshold t_a: those with a norm of at least t_a of the largest in their layer.

    A layer whose weights are all zero has none.
    """
    if not 0 <= threshold <= 1:
        raise UserError(f"threshold = {threshold}; it is a share of the layer's largest norm: give one from 0 to 1")
    active = {name: (layer >= threshold * layer.max()) & (layer.max() > 0) for name, layer in norms.items()}
    shares = {name: layer.double().mean().item() for name, layer in active.items()}
    return Activity(
        threshold=threshold,
        layers=shares,
        by_layer=sum(shares.values()) / len(shares),
        by_filter=torch.cat(list(active.values())).double().mean().item(),
    )
