"""The l1 norms of the encoders' filters (paper, "From manifold mixing to MixMo"): who uses which channel."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mixmo.evaluation.analysis.filters import encoder_norms, encoders
from mixmo.evaluation.analysis.summary import channel_separation
from mixmo.plots.style import COLOURS, figure, run_names, styled
from mixmo.runs.directory import Run
from mixmo.runs.network import load_network


def by_owner(norms_MC: Tensor) -> Tensor:
    """The order of the channels that puts those of member 0 first, from the most to the least its own, and so on.

    >>> by_owner(torch.tensor([[1.0, 5.0, 4.0], [2.0, 0.0, 1.0]])).tolist()
    [1, 2, 0]
    """
    if len(norms_MC) == 1:
        return norms_MC[0].argsort(descending=True)
    largest_2C, owner_2C = norms_MC.topk(2, dim=0)
    margin_C = largest_2C[0] - largest_2C[1]
    order = margin_C.argsort(descending=True)
    return order[owner_2C[0][order].argsort(stable=True)]


def draw(runs: Sequence[Run], which: str = "last") -> Any:
    """Draw one panel per run: one group of bars per channel, one bar per member."""
    nets = [load_network(run, which) for run in runs]
    names = run_names([run.path for run in runs])
    members = max(len(encoders(net)) for net in nets)
    with styled():
        drawn = figure(6.4, 1.75 * len(nets) + 0.4)
        grid = drawn.subplots(len(nets), 1, squeeze=False)[:, 0]
        for axes, net, name in zip(grid, nets, names, strict=True):
            norms_MC = encoder_norms(net)
            norms_MC = norms_MC[:, by_owner(norms_MC)]
            count, channels = norms_MC.shape
            width = 0.8 / count
            for m, norms_C in enumerate(norms_MC):
                place = torch.arange(channels) + (m - (count - 1) / 2) * width
                axes.bar(place.tolist(), norms_C.tolist(), width, color=COLOURS[m % len(COLOURS)], label=f"member {m}")
            separate = channel_separation(net)
            note = "one encoder" if separate is None else f"separation {separate:.2f}"
            axes.set_title(f"{name}: {note}", loc="left")
            axes.set(xlim=(-0.6, channels - 0.4), xticks=[], ylabel=r"$\ell_1$ norm")
        grid[-1].set_xlabel("encoder channels, by the member that uses them most")
        if members > 1:
            widest = max(zip(grid, nets, strict=True), key=lambda pair: len(encoders(pair[1])))[0]
            drawn.legend(*widest.get_legend_handles_labels(), loc="outside lower center", ncols=min(6, members))
    return drawn
