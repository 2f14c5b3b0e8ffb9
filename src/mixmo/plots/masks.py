"""The gallery of masks: two images of a data set, mixed by every mask at several ratios (paper, appendix "MSDA")."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mixmo.data.types import Dataset
from mixmo.mixing.masks import MASKS
from mixmo.plots.style import COLOURS, FAINT, INK, figure, matplotlib, row_title, show_image, styled, tinted
from mixmo.utils.errors import UserError

RATIOS = (0.1, 0.3, 0.5, 0.7, 0.9)


class Cell(NamedTuple):
    kappa: float  # requested ratio of the first image
    area: float  # its realised share
    mask: Tensor  # (H, W) share of the first image at each pixel
    pixels: Tensor  # (H, W, C) in [0, 1]


def two_images(dataset: Dataset, images: Sequence[int] | None = None) -> tuple[Tensor, Tensor, list[str]]:
    """Two test images (H, W, C) in [0, 1] and their classes: those numbered, or the first two of different classes."""
    labels = dataset.test.labels
    if images is None:
        images = (0, int((labels != labels[0]).int().argmax()))
    for number in images:
        if not 0 <= number < len(labels):
            raise UserError(f"image {number}: {dataset.name} has test images 0 to {len(labels) - 1}; take two of them")
    first, second = (dataset.test.resident[number].float() / 255 for number in images)
    return first, second, [dataset.classes[int(labels[number])] for number in images]


def gallery(first: Tensor, second: Tensor, seed: int = 0) -> dict[str, list[Cell]]:
    """For linear mixing and for every mask that serves this size, one cell per ratio, each with its own draws."""
    height, width = first.shape[:2]
    kappa = torch.tensor(RATIOS)
    shares = {"linear": kappa[:, None, None].expand(-1, height, width)}
    for name in MASKS:
        if min(height, width) >= MASKS[name].minimum:
            generator = torch.Generator().manual_seed(seed)
            u = torch.rand(len(RATIOS), MASKS[name].uniforms(height, width), generator=generator)
            shares[name] = MASKS[name].draw(kappa, u, height, width)
    return {
        name: [
            Cell(ratio, mask.mean().item(), mask, mask[..., None] * first + (1 - mask[..., None]) * second)
            for ratio, mask in zip(RATIOS, masks, strict=True)
        ]
        for name, masks in shares.items()
    }


def draw(dataset: Dataset, images: Sequence[int] | None = None, seed: int = 0) -> Any:
    """Draw the two images on the left; beside them one column per mask, one row per ratio, the realised area below."""
    first, second, names = two_images(dataset, images)
    first, second = tinted(first, COLOURS[0]), tinted(second, COLOURS[1])
    columns = gallery(first, second, seed=seed)
    with styled():
        drawn = figure(1.08 * len(columns) + 1.75, 1.21 * len(RATIOS) + 0.45)
        left, right = drawn.subfigures(1, 2, width_ratios=(1.55, 1.08 * len(columns) + 0.2))
        for m, (axes, pixels) in enumerate(zip(left.subplots(2, 1), (first, second), strict=True)):
            show_image(axes, pixels, colour=COLOURS[m])
            axes.set_title(f"$x_{m}$: {names[m].replace('_', ' ')}", color=INK)
        grid = right.subplots(len(RATIOS), len(columns), squeeze=False)
        for line, ratio in zip(grid, RATIOS, strict=True):
            row_title(line[0], rf"$\kappa = {ratio:g}$")
        for line, (name, cells) in zip(grid.T, columns.items(), strict=True):
            line[0].set_title(name)
            for axes, cell in zip(line, cells, strict=True):
                show_image(axes, cell.pixels)
                axes.set_xlabel(f"{cell.area:.2f}", labelpad=2, fontsize=8)
                outline(axes, cell.mask)
        right.supxlabel(r"under each image: the area of $x_0$ as realised", fontsize=8, color=FAINT)
    return drawn


def outline(axes: Any, mask: Tensor) -> None:
    """The border of a binary mask: a white line with a dark edge shows on any image."""
    for colour, width in (("black", 1.8), ("white", 0.9)):
        style = {"colors": colour, "linewidths": width, "capstyle": "projecting"}
        axes.add_collection(matplotlib().collections.LineCollection(border(mask), **style))


def border(mask: Tensor) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """The sides, as pairs of points (x, y), between pixels that differ."""
    below = mask.diff(dim=0).abs().gt(0.5).nonzero().tolist()
    beside = mask.diff(dim=1).abs().gt(0.5).nonzero().tolist()
    lying = [((x - 0.5, y + 0.5), (x + 0.5, y + 0.5)) for y, x in below]
    return lying + [((x + 0.5, y - 0.5), (x + 0.5, y + 0.5)) for y, x in beside]
