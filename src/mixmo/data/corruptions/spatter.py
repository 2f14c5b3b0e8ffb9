"""Spatter: drops of water, or specks of mud, on the lens."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixmo.data.corruptions import separable
from mixmo.data.corruptions.base import CORRUPTIONS, Draw

WATER, MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)
# mean and deviation of the noise, its blur, the threshold for liquid, strength of water or blur of mud
SPATTER = (
    (0.62, 0.1, 0.7, 0.7, 0.5),
    (0.65, 0.1, 0.8, 0.7, 0.5),
    (0.65, 0.3, 1.0, 0.69, 0.5),
    (0.65, 0.1, 0.7, 0.69, 0.6),
    (0.65, 0.1, 0.5, 0.68, 0.6),
)


@CORRUPTIONS.add("spatter")
def spatter(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """Where blurred noise exceeds a threshold: water, lit from one side (severities 1 to 3), or mud (4 and 5)."""
    mean, deviation, blur, threshold, strength = SPATTER[severity - 1]
    noise_NHW1 = mean + deviation * draw.normal(x_NHWC.shape[:3])[..., None]
    liquid_NHW1 = separable.gaussian(noise_NHW1, blur)
    if severity <= 3:
        # Beyond 255 a level starts again from 0: so it does in the published code, in the middle of the largest drops.
        levels_NHW = (liquid_NHW1.where(liquid_NHW1 >= threshold, 0.0) * 255).floor()[..., 0] % 256
        water_NHW = levels_NHW * relief(levels_NHW)
        most_N11 = water_NHW.amax((1, 2), keepdim=True)
        water_NHW1 = (strength * water_NHW / most_N11.clamp(min=1))[..., None]
        return x_NHWC + water_NHW1 * torch.tensor(WATER, device=x_NHWC.device)
    mud_NHW1 = separable.gaussian((liquid_NHW1 > threshold).to(x_NHWC), strength)
    mud_NHW1 = mud_NHW1.where(mud_NHW1 >= 0.8, 0.0)
    return x_NHWC * (1 - mud_NHW1) + mud_NHW1 * torch.tensor(MUD, device=x_NHWC.device)


def relief(levels_NHW: Tensor) -> Tensor:
    """How the surface of the water catches light: its distance from the rims, equalised, embossed and smoothed.

    Everything in whole levels 0 .. 255, as OpenCV computes it.
    """
    distance_NHW = chamfer(rims(levels_NHW)).clamp(max=20)
    # In float64, as a sum that is a multiple of nine but for rounding would fall to the level below.
    mean_NHW = (_filter(distance_NHW.double(), torch.ones(3, 3)) / 9).to(levels_NHW)
    height_NHW = equalise(mean_NHW.floor())
    embossed_NHW = _filter(height_NHW, torch.tensor([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])).clamp(0, 255)
    return (_filter(embossed_NHW, torch.ones(3, 3)) / 9).round()


def _filter(x_NHW: Tensor, kernel_33: Tensor) -> Tensor:
    """Correlation with a 3x3 kernel; the image is mirrored at its last pixels."""
    return F.conv2d(F.pad(x_NHW[:, None], (1, 1, 1, 1), mode="reflect"), kernel_33.to(x_NHW)[None, None])[:, 0]


def rims(levels_NHW: Tensor) -> Tensor:
    """Edges by Canny (1986): ridges of the Sobel gradient above 150, with what is joined to them above 50."""
    padded = F.pad(levels_NHW[:, None], (1, 1, 1, 1), mode="replicate")
    sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]).to(levels_NHW)
    across, down = F.conv2d(padded, torch.stack([sobel, sobel.T])[:, None]).unbind(1)
    size = across.abs() + down.abs()
    around = F.pad(size, (1, 1, 1, 1))

    def at(rows: int, columns: int) -> Tensor:
        """The gradient's size so many pixels below and to the right."""
        return around[:, 1 + rows : around.shape[1] - 1 + rows, 1 + columns : around.shape[2] - 1 + columns]

    slope = 2**0.5 - 1  # the tangent of 22.5 degrees
    level = down.abs() < slope * across.abs()
    steep = down.abs() > (slope + 2) * across.abs()
    falling = (across < 0) == (down < 0)
    ridge = torch.where(
        level,
        (size > at(0, -1)) & (size >= at(0, 1)),
        torch.where(
            steep,
            (size > at(-1, 0)) & (size >= at(1, 0)),
            torch.where(falling, (size > at(-1, -1)) & (size > at(1, 1)), (size > at(-1, 1)) & (size > at(1, -1))),
        ),
    )
    candidate, edge = ridge & (size > 50), ridge & (size > 150)
    while True:
        grown = candidate & (F.max_pool2d(edge[:, None].float(), 3, 1, 1)[:, 0] > 0)
        if torch.equal(grown, edge):
            return edge
        edge = grown


# Steps of the 5x5 chamfer distance (Borgefors, 1986), each in all its directions, with OpenCV's lengths.
CHAMFER = ((0, 1, 1.0), (1, 1, 1.4), (1, 2, 2.1969))


def chamfer(edge_NHW: Tensor) -> Tensor:
    """Distance from each pixel to the nearest edge, in these steps; infinite where an image has no edge."""
    steps = {
        (a * i, b * j, length)
        for p, q, length in CHAMFER
        for a, b in ((p, q), (q, p))
        for i in (-1, 1)
        for j in (-1, 1)
    }
    _, height, width = edge_NHW.shape
    distance = torch.where(edge_NHW, 0.0, torch.inf)
    while True:
        around = F.pad(distance, (2, 2, 2, 2), value=torch.inf)
        shorter = distance
        for rows, columns, length in sorted(steps):
            there = around[:, 2 + rows : 2 + rows + height, 2 + columns : 2 + columns + width]
            shorter = torch.minimum(shorter, there + length)
        if torch.equal(shorter, distance):
            return distance
        distance = shorter


def equalise(levels_NHW: Tensor) -> Tensor:
    """Whole levels spread over 0 .. 255 by their cumulative count, the lowest one to 0; one level alone stays."""
    flat_NP = levels_NHW.flatten(1).long()
    count_NL = torch.zeros(len(flat_NP), 256, device=flat_NP.device).scatter_add_(
        1, flat_NP, torch.ones_like(flat_NP).float()
    )
    lowest_N1 = flat_NP.amin(1, keepdim=True)
    rest_N1 = flat_NP.shape[1] - count_NL.gather(1, lowest_N1)
    table_NL = ((count_NL.cumsum(1) - count_NL.gather(1, lowest_N1)) * 255 / rest_N1.clamp(min=1)).round().clamp(0, 255)
    equalised_NP = table_NL.gather(1, flat_NP).where(rest_N1 > 0, flat_NP.float())
    return equalised_NP.view_as(levels_NHW)
