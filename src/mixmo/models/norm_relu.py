"""Batch normalisation and ReLU, as one function in compiled training on a GPU.

torch's ReLU keeps its result for the backward pass, which then reads three maps: the result, its gradient, and the
input of the normalisation. Where the result is positive follows from that input: here the backward pass reads two.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WITHIN = (1, 3, 4)  # of (G, N, C, H, W): what the statistics of a ghost batch are taken over


def norm_relu(norm: nn.Module, x: Tensor) -> Tensor:
    """Return relu(norm(x))."""
    known = type(norm) is nn.BatchNorm2d or hasattr(norm, "ghost")
    if known and norm.training and x.is_cuda and torch.compiler.is_compiling():
        return fused_norm_relu(norm, x)
    return F.relu(norm(x))


def fused_norm_relu(norm: Any, x: Tensor) -> Tensor:
    """Return relu(norm(x)) of a normalisation in training, over the whole batch or over ghost batches."""
    x_GNCHW = x.unflatten(0, (-1, getattr(norm, "ghost", len(x))))
    with torch.no_grad():
        variance, mean = torch.var_mean(wide(x_GNCHW), WITHIN, correction=0, keepdim=True)
        update_running(norm, mean.mean(0).flatten(), variance.mean(0).flatten(), x_GNCHW[0].numel() // x.shape[1])
        inverse = (variance + norm.eps).rsqrt()
    y_GNCHW: Tensor = NormReLU.apply(x_GNCHW, norm.weight, norm.bias, mean, inverse)  # type: ignore[no-untyped-call]
    return y_GNCHW.flatten(0, 1)


def wide(x: Tensor) -> Tensor:
    """Return x in float32, which torch normalises half precision in, or in float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@torch.no_grad()
def update_running(norm: Any, mean_C: Tensor, variance_C: Tensor, count: int) -> None:
    """Move the running statistics of an nn.BatchNorm2d towards those of `count` values per channel, as torch does."""
    norm.num_batches_tracked.add_(1)
    norm.running_mean.lerp_(mean_C.to(norm.running_mean.dtype), norm.momentum)
    norm.running_var.lerp_((variance_C * (count / (count - 1))).to(norm.running_var.dtype), norm.momentum)


class NormReLU(torch.autograd.Function):
    """relu(z), z = s (x - m) + b, with s = w r, and the mean m and the inverse deviation r of each ghost batch.

    dz = dy where z > 0;  db = sum dz;  dw = r sum dz (x - m);  dx = s (dz - db / n - (x - m) r dw / n)
    """

    @staticmethod
    def forward(ctx: Any, x_GNCHW: Tensor, weight_C: Tensor, bias_C: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
        scale = weight_C[:, None, None] * inverse
        shift = bias_C[:, None, None] - scale * mean
        ctx.save_for_backward(x_GNCHW, mean, inverse, scale, shift)
        return (wide(x_GNCHW) * scale + shift).relu().to(x_GNCHW.dtype)

    @staticmethod
    def backward(ctx: Any, dy_GNCHW: Tensor) -> tuple[Any, ...]:
        x_GNCHW, mean, inverse, scale, shift = ctx.saved_tensors
        n = x_GNCHW[0].numel() // x_GNCHW.shape[2]
        x, dy = wide(x_GNCHW), wide(dy_GNCHW)
        dz = torch.where(x * scale + shift > 0, dy, 0.0)
        bias = dz.sum(WITHIN, keepdim=True)
        weight = (dz * (x - mean)).sum(WITHIN, keepdim=True) * inverse
        slope = -scale * inverse * weight / n
        dx = dz * scale + (x * slope - (scale * bias / n + slope * mean))
        return dx.to(x_GNCHW.dtype), weight.sum(0).flatten(), bias.sum(0).flatten(), None, None
