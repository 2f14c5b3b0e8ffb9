"""Weather: fog, frost and snow in front of the image."""

import math

import torch
from torch import Tensor

from mixmo.data.corruptions import separable
from mixmo.data.corruptions.base import CORRUPTIONS, Draw
from mixmo.data.corruptions.blur import smear

# Of the five photographs behind the published frost, at the scale it uses: mean (r, g, b) and standard deviation.
FROST = ((78, 149, 166, 18), (201, 205, 214, 22), (201, 205, 214, 22), (138, 153, 166, 29), (112, 123, 135, 43))


@CORRUPTIONS.add("fog")
def fog(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """A fractal cloud of strength c added, then darkened so that the brightest value stays: (x + c f) m / (m + c)."""
    c, decay = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))[severity - 1]
    samples, height, width, _ = x_NHWC.shape
    brightest_N111 = x_NHWC.amax((1, 2, 3), keepdim=True)
    cloud_NHW1 = plasma(samples, max(height, width), decay, draw)[:, :height, :width, None]
    return (x_NHWC + c * cloud_NHW1) * brightest_N111 / (brightest_N111 + c)


def plasma(samples: int, size: int, decay: float, draw: Draw) -> Tensor:
    """Diamond-square fractals on a torus, scaled to [0, 1], with the next power of two from `size` as their side.

    From the coarsest grid to the finest: the centre of each square is the mean of its corners plus noise, then the
    middle of each edge the mean of its four neighbours plus noise. The noise is uniform up to w^2 (so it is in the
    published code), where w starts at 100 and is divided by `decay` from grid to grid.
    """
    side = 1 << (size - 1).bit_length()
    map_NSS = torch.zeros(samples, side, side, device=draw.device)
    step, w = side, 100.0
    while step >= 2:
        half, count = step // 2, side // step
        corner = map_NSS[:, ::step, ::step]
        sums = corner + corner.roll(-1, 1)
        map_NSS[:, half::step, half::step] = _wobbled(sums + sums.roll(-1, 2), w, samples, count, draw)
        centre = map_NSS[:, half::step, half::step]
        above = centre + centre.roll(1, 1) + corner + corner.roll(-1, 2)
        map_NSS[:, ::step, half::step] = _wobbled(above, w, samples, count, draw)
        beside = centre + centre.roll(1, 2) + corner + corner.roll(-1, 1)
        map_NSS[:, half::step, ::step] = _wobbled(beside, w, samples, count, draw)
        step, w = half, w / decay
    map_NSS = map_NSS - map_NSS.amin((1, 2), keepdim=True)
    return map_NSS / map_NSS.amax((1, 2), keepdim=True)


def _wobbled(sum_Nkk: Tensor, w: float, samples: int, count: int, draw: Draw) -> Tensor:
    return sum_Nkk / 4 + w * draw.uniform(-w, w, (samples, count, count))


@CORRUPTIONS.add("frost")
def frost(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """A frosted pane over the image, a x + b f; f is a procedural texture, where CIFAR-C used photographs.

    Each image draws one of five panes, with the mean colour and the contrast of the photographs. Like theirs, six
    tenths of the variance is coarse (here a plasma fractal) and four tenths fine, nearly independent between pixels.
    """
    a, b = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    samples, height, width, _ = x_NHWC.shape
    pane_N4 = torch.tensor(FROST, device=x_NHWC.device)[draw.integers(0, len(FROST), (samples,))] / 255
    colour_N11C, contrast_N111 = pane_N4[:, None, None, :3], pane_N4[:, None, None, 3:]
    coarse_NHW1 = plasma(samples, max(height, width), 2.0, draw)[:, :height, :width, None]
    deviation_N111, mean_N111 = torch.std_mean(coarse_NHW1, (1, 2), keepdim=True)
    coarse_NHW1 = (coarse_NHW1 - mean_N111) / deviation_N111
    texture_NHW1 = math.sqrt(0.6) * coarse_NHW1 + math.sqrt(0.4) * draw.normal(coarse_NHW1.shape)
    return a * x_NHWC + b * (colour_N11C + contrast_N111 * texture_NHW1).clamp(0, 1)


# mean and deviation of the flakes' noise, their size, threshold, radius and sigma of the smear, share of the image
SNOW = (
    (0.1, 0.2, 1.0, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1.0, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
)


@CORRUPTIONS.add("snow")
def snow(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """Flakes falling at a random angle of 45 degrees or less from the vertical, over a whitened image."""
    mean, deviation, size, threshold, radius, sigma, share = SNOW[severity - 1]
    samples, height, width, _ = x_NHWC.shape
    flakes_NHW1 = separable.zoom(mean + deviation * draw.normal((samples, height, width))[..., None], size)
    flakes_NHW1 = flakes_NHW1.where(flakes_NHW1 >= threshold, 0.0).clamp(0, 1)
    degrees_N = draw.uniform(-135, -45, (samples,))
    flakes_NHW1 = smear((flakes_NHW1 * 255).floor() / 255, radius, sigma, degrees_N)
    grey_NHW1 = (x_NHWC * torch.tensor([0.299, 0.587, 0.114], device=x_NHWC.device)).sum(3, keepdim=True)
    whitened_NHWC = share * x_NHWC + (1 - share) * torch.maximum(x_NHWC, 1.5 * grey_NHW1 + 0.5)
    return whitened_NHWC + flakes_NHW1 + flakes_NHW1.flip(1, 2)
