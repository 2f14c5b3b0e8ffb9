"""Quantisation to fp8: activations and weights to e4m3, the gradient of an output to e5m2.

    x ~ x8                        not scaled: what follows a batch normalisation lies within +-448
    w[r] ~ s[r] w8[r]             s[r] = max |w[r]| / 448, for each row r of the result
    dy ~ dy8 / s                  s = 57,344 / (2 max |dy| of the step before)

They are plain tensor functions, so that `torch.compile` fuses each into the pass that computes its operand. For that,
the scale of dy may not depend on dy itself, which would have to be read twice: it is that of the step before.
"""

from typing import NamedTuple

import torch
from torch import Tensor

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
MARGIN = 2.0  # a gradient may grow by this from one step to the next before it saturates
SMALLEST = 1e-30  # maximum: what is zero everywhere has a finite scale too


class Operands(NamedTuple):
    """What a direction multiplies, x8 with w8 or dy8 with w8', and the scale of each channel of the result."""

    a: Tensor
    weight: Tensor
    scale: Tensor


def forward_operands(x: Tensor, weight: Tensor) -> Operands:
    """Return x8, in channels_last, and the weights (K, C, 3, 3) with a scale for each output channel."""
    return Operands(quantised_input(x), *quantised_weights(weight))


def input_operands(dy: Tensor, weight: Tensor, maximum: Tensor) -> Operands:
    """Return dy8 and a copy of the weights, (C, K, 3, 3), with a scale for each input channel."""
    dy8, unit = quantised_gradient(dy, maximum)
    weight8, scale = quantised_weights(weight.transpose(0, 1))
    return Operands(dy8, weight8, scale * unit)


def saturated(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x in fp8: too large numbers become the largest one, but infinity becomes NaN, which is to be noticed."""
    largest = LARGEST[dtype]
    return x.clamp(-largest, largest).masked_fill(x.isinf(), torch.nan).to(dtype)


def quantised_input(x: Tensor) -> Tensor:
    """Return x in e4m3, in channels_last."""
    return saturated(x, E4M3).contiguous(memory_format=torch.channels_last)


def quantised_weights(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights (R, S, 3, 3) in e4m3, in channels_last, and the scale of each row (R,)."""
    scale_R = weight.float().abs().amax((1, 2, 3)).clamp_min(SMALLEST) / LARGEST[E4M3]
    weight8 = saturated(weight.float() / scale_R[:, None, None, None], E4M3)
    return weight8.contiguous(memory_format=torch.channels_last), scale_R


def quantised_gradient(dy: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of an output in e5m2, in channels_last, and the value of its unit."""
    scale = LARGEST[E5M2] / (MARGIN * maximum.clamp_min(SMALLEST))
    return saturated(dy.float() * scale, E5M2).contiguous(memory_format=torch.channels_last), scale.reciprocal()
