"""The loss weights w_r over the ratio kappa (paper, equation 3 and appendix "Weighting function")."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mixmo.mixing.mixer import loss_weights
from mixmo.plots.style import FAINT, figure, styled

ROOTS = (1.0, 2.0, 3.0, 4.0, 10.0, math.inf)
# Dark to light with growing r, each step of the same lightness: the order survives a grey print.
SHADES = ("#0d2b5e", "#23518f", "#D55E00", "#5b8fc4", "#8fb8dc", "#b4b4b4")


def curves(roots: Sequence[float] = ROOTS, points: int = 201) -> tuple[Tensor, dict[float, Tensor]]:
    """kappa from 0 to 1, denser at the ends, where curves are steep, and w_r(kappa) of one of two members by r."""
    kappa = torch.linspace(0, math.pi, points, dtype=torch.float64).cos().neg().add(1).div(2)
    return kappa, {r: loss_weights(torch.stack((kappa, 1 - kappa)), r)[0] for r in roots}


def draw() -> Any:
    """The curves of the paper; that of r = 3, which it uses, is marked."""
    kappa, weights = curves()
    with styled():
        drawn = figure(4.2, 3.0)
        axes = drawn.subplots()
        for (r, weight), shade in zip(weights.items(), SHADES, strict=True):
            name = r"$r \to \infty$" if math.isinf(r) else f"$r = {r:g}$"
            width = 2.2 if r == 3 else 1.4
            axes.plot(kappa.numpy(), weight.numpy(), color=shade, linewidth=width, label=name, zorder=3 + (r == 3))
        axes.axvline(0.5, color=FAINT, linewidth=0.6, linestyle=(0, (4, 4)), zorder=1)
        axes.set(xlim=(0, 1), ylim=(0, 2), xlabel=r"mixing ratio $\kappa$", ylabel=r"loss weight $w_r(\kappa)$")
        axes.set(xticks=[0, 0.25, 0.5, 0.75, 1], yticks=[0, 0.5, 1, 1.5, 2])
        axes.set_xticklabels(["0", "0.25", "0.5", "0.75", "1"])
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn
