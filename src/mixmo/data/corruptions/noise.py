"""Noise: every value of every channel gets its own."""

from torch import Tensor

from mixmo.data.corruptions.base import CORRUPTIONS, Draw


@CORRUPTIONS.add("gaussian_noise")
def gaussian_noise(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """Normal noise of standard deviation c: x + c n."""
    c = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return x_NHWC + c * draw.normal(x_NHWC.shape)


@CORRUPTIONS.add("shot_noise")
def shot_noise(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """Photons counted: Poisson(c x) / c, noise of variance x / c."""
    c = (500, 250, 100, 75, 50)[severity - 1]
    return draw.poisson(x_NHWC * c) / c


@CORRUPTIONS.add("impulse_noise")
def impulse_noise(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """Salt and pepper: a share c of all values becomes 0 or 1, with equal chances."""
    c = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    u_NHWC = draw.uniform(0, 1, x_NHWC.shape)
    return x_NHWC.where(u_NHWC >= c, (u_NHWC < c / 2).to(x_NHWC))


@CORRUPTIONS.add("speckle_noise")
def speckle_noise(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """Normal noise in proportion to the value: x + c x n."""
    c = (0.06, 0.10, 0.12, 0.16, 0.20)[severity - 1]
    return x_NHWC + c * x_NHWC * draw.normal(x_NHWC.shape)
