"""Batch normalisation and ReLU as one function, whose sums over pixels are kernels of their own.

    z = scale x + shift        y = max(z, 0)
    dz = dy where z > 0, else 0        dx = scale dz + slope x + constant

with numbers of each ghost batch (of the batch, if it has none) and channel, as `mixmo.kernels.channel_sums` defines
them. torch's ReLU keeps its result; here the backward pass reads two maps instead of three. What is computed pixel by
pixel is left to `torch.compile`, which fuses it with what comes before and after.
"""

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixmo.kernels.devices import agree, failed
from mixmo.utils.device import HALF


@torch.library.custom_op("mixmo::norm_statistics", mutates_args=())
def norm_statistics(x: Tensor, weight: Tensor, bias: Tensor, eps: float, ghost: int) -> Tensor:
    """Return m, v, r, scale and shift of each ghost batch and channel (5, G, C), in float32."""
    if not x.is_cuda:
        return statistics_by_torch(x, weight, bias, eps, ghost)
    from mixmo.kernels.channel_sums import statistics

    with torch.cuda.device_of(x):  # Triton launches on the current one
        return statistics(x, weight, bias, eps, ghost)


@torch.library.custom_op("mixmo::norm_relu_gradients", mutates_args=())
def norm_relu_gradients(dy: Tensor, x: Tensor, statistics: Tensor, ghost: int) -> Tensor:
    """Return slope, constant, d weight and d bias of each ghost batch and channel (4, G, C), in float32."""
    if not x.is_cuda:
        return gradients_by_torch(dy, x, statistics, ghost)
    from mixmo.kernels.channel_sums import gradients

    with torch.cuda.device_of(x):
        return gradients(dy, x, statistics, ghost)


def statistics_by_torch(x: Tensor, weight: Tensor, bias: Tensor, eps: float, ghost: int) -> Tensor:
    variance, mean = torch.var_mean(_ghosts(x, ghost), (1, 3, 4), correction=0)
    inverse = (variance + eps).rsqrt()
    scale = weight * inverse
    return torch.stack((mean, variance, inverse, scale, bias - scale * mean))


def gradients_by_torch(dy: Tensor, x: Tensor, statistics: Tensor, ghost: int) -> Tensor:
    mean, _, inverse, scale, shift = statistics
    m, s, t = (of[:, None, :, None, None] for of in (mean, scale, shift))
    x_GNCHW, dy_GNCHW = _ghosts(x, ghost), _ghosts(dy, ghost)
    dz = torch.where(x_GNCHW * s + t > 0, dy_GNCHW, 0.0)
    a, b, n = dz.sum((1, 3, 4)), (dz * (x_GNCHW - m)).sum((1, 3, 4)), ghost * x.shape[2] * x.shape[3]
    slope = -scale * inverse.square() * b / n
    return torch.stack((slope, -scale * a / n - slope * mean, inverse * b, a))


@norm_statistics.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float, ghost: int) -> Tensor:
    return weight.new_empty(5, x.shape[0] // ghost, x.shape[1])


@norm_relu_gradients.register_fake
def _(dy: Tensor, x: Tensor, statistics: Tensor, ghost: int) -> Tensor:
    return statistics.new_empty(4, x.shape[0] // ghost, x.shape[1])


def _ghosts(x: Tensor, ghost: int) -> Tensor:
    x_GNCHW: Tensor = x.unflatten(0, (-1, ghost))
    return x_GNCHW.to(torch.promote_types(x.dtype, torch.float32))


class NormReLU(torch.autograd.Function):
    """y of x, weight, bias and the statistics (5, G, C) of the ghost batches of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, statistics: Tensor, ghost: int) -> Tensor:
        ctx.save_for_backward(x, statistics)
        ctx.ghost = ghost
        _, _, _, scale, shift = _of_images(statistics, ghost)
        y: Tensor = (x * scale + shift).relu().to(x.dtype)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        (x, statistics), ghost = ctx.saved_tensors, ctx.ghost
        gradients = norm_relu_gradients(dy, x, statistics, ghost)
        _, _, _, scale, shift = _of_images(statistics, ghost)
        slope, constant, _, _ = _of_images(gradients, ghost)
        dz = torch.where(x * scale + shift > 0, dy, 0.0)
        dx = dz * scale + x * slope + constant
        return dx.to(x.dtype), gradients[2].sum(0), gradients[3].sum(0), None, None


def _of_images(of_ghosts: Tensor, ghost: int) -> tuple[Tensor, ...]:
    """Return each of some numbers of ghost batches and channels (_, G, C) as those of images (N, C, 1, 1)."""
    return tuple(of[:, None].expand(-1, ghost, -1).flatten(0, 1)[..., None, None] for of in of_ghosts)


def norm_relu(norm: nn.Module, x: Tensor) -> Tensor:
    """Return relu(norm(x)); in a compiled step by the kernels, if `set_norm_relu` chose them for this layer.

    Without a compiler, what is computed pixel by pixel would take more passes than torch's own normalisation.
    """
    chosen = norm.training and torch.compiler.is_compiling() and x.shape == vars(norm).get("summed")
    if chosen and x.dtype in HALF.values() and not norm._forward_hooks:
        return by_kernels(norm, x)
    return F.relu(norm(x))


def by_kernels(norm: Any, x: Tensor) -> Tensor:
    ghost = vars(norm).get("ghost", x.shape[0])
    with torch.no_grad():
        statistics = norm_statistics(x, norm.weight, norm.bias, norm.eps, ghost)
        mean_C, variance_C = statistics[:2].mean(1)
        update_running(norm, mean_C, variance_C, ghost * x.shape[2] * x.shape[3])
    y: Tensor = NormReLU.apply(x, norm.weight, norm.bias, statistics, ghost)  # type: ignore[no-untyped-call]
    return y


@torch.no_grad()
def update_running(norm: nn.BatchNorm2d, mean_C: Tensor, variance_C: Tensor, count: int) -> None:
    """Move the running statistics towards those of `count` values per channel, as torch does."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    norm.num_batches_tracked.add_(1)
    norm.running_mean.lerp_(mean_C.to(norm.running_mean.dtype), norm.momentum)
    norm.running_var.lerp_((variance_C * (count / (count - 1))).to(norm.running_var.dtype), norm.momentum)


def set_norm_relu(norm: nn.Module, size: tuple[int, ...]) -> None:
    """Let `norm_relu` compute training batches of maps of a size (N, C, H, W) by the kernels, where they gain."""
    from mixmo.kernels.channel_sums import LEAST, supported

    plain = type(norm) is nn.BatchNorm2d or "ghost" in vars(norm)
    usual = plain and norm.affine and norm.track_running_stats and norm.momentum
    if usual and math.prod(size) >= LEAST and supported(size, vars(norm).get("ghost", size[0])):
        vars(norm)["summed"] = size


@functools.cache
def sums_are_right(device: torch.device) -> bool:
    """Whether the kernels run on this device, and agree with torch on a small map; else warn."""
    try:
        generator = torch.Generator(device).manual_seed(0)
        x, dy = torch.randn(2, 8, 64, 8, 8, device=device, generator=generator).bfloat16()
        ones = torch.ones(64, device=device)
        statistics = norm_statistics(x, ones, ones, 1e-5, 4)
        found = (*statistics, *norm_relu_gradients(dy, x, statistics, 4))
        expected = (*statistics_by_torch(x, ones, ones, 1e-5, 4), *gradients_by_torch(dy, x, statistics, 4))
        return agree(zip(found, expected, strict=True), "the kernel of batch normalisation")
    except Exception as error:  # whatever a compiler or a driver raises: torch can do all of it
        return failed("the kernel of batch normalisation", error)
