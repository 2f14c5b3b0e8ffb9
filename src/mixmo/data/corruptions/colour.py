"""Colours: contrast against the mean, brightness and saturation in HSV.

With hue fixed, HSV needs no conversion: V = max(r, g, b) and S = (max - min) / max, and a channel is V (1 - S g) with
0 <= g <= 1 given by the hue alone.
"""

import torch
from torch import Tensor

from mixmo.data.corruptions.base import CORRUPTIONS, Draw


@CORRUPTIONS.add("contrast")
def contrast(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """Towards the mean of each channel of the image: mean + c (x - mean)."""
    c = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    mean_N11C = x_NHWC.mean((1, 2), keepdim=True)
    return mean_N11C + c * (x_NHWC - mean_N11C)


@CORRUPTIONS.add("brightness")
def brightness(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """V + c in HSV, at most 1; hue and saturation stay, so a channel is scaled by the new V over the old."""
    c = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    value_NHW1 = x_NHWC.amax(3, keepdim=True)
    brighter_NHW1 = (value_NHW1 + c).clamp(max=1)
    scaled_NHWC = x_NHWC / value_NHW1.clamp(min=1 / 255) * brighter_NHW1
    return scaled_NHWC.where(value_NHW1 > 0, brighter_NHW1)  # black has no hue and becomes grey


@CORRUPTIONS.add("saturate")
def saturate(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """a S + b in HSV, from 0 to 1. Grey has no hue: where b > 0 it becomes red, whose hue is 0."""
    a, b = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))[severity - 1]
    value_NHW1, least_NHW1 = x_NHWC.amax(3, keepdim=True), x_NHWC.amin(3, keepdim=True)
    range_NHW1 = value_NHW1 - least_NHW1
    saturation_NHW1 = range_NHW1 / value_NHW1.clamp(min=1 / 255)
    red_C = torch.tensor([0.0, 1.0, 1.0], device=x_NHWC.device)
    g_NHWC = ((value_NHW1 - x_NHWC) / range_NHW1.clamp(min=1 / 255)).where(range_NHW1 > 0, red_C)
    return value_NHW1 * (1 - (a * saturation_NHW1 + b).clamp(0, 1) * g_NHWC)
