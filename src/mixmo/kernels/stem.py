"""The mixed encodings of M images by M first convolutions, in one pass over the result.

    y[n, i, j, k] = M sum_m a_m[n, i, j] e_m[n, i, j, k]
    e_m[n, i, j, k] = b_m[k] + sum over u, v, c of x_m[n, s i + u - p, s j + v - p, c] w_m[k, c, u, v]

with coefficients a_m, stride s, padding p and at most four channels c. M convolutions and a mixing block would write
and read M times as many features. The images are padded beforehand (`stem_layout`), which `torch.compile` fuses with
what makes them.

The images and the coefficients get no gradient.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from mixmo.kernels.devices import agree, failed
from mixmo.kernels.memory_format import nhwc
from mixmo.kernels.stem_layout import output_size, padded_image, padded_weight


def mixed_stem(
    images: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    coefficients: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    """Return the mixed encodings (N, K, h, w) in channels_last.

    Args:
        images: (N, C, H, W) of each member, in bfloat16 or float16.
        weights: (K, C, R, S) of each member.
        biases: (K,) of each member; or none.
        coefficients: (M, N, 1, h, w), or (M, N, 1, 1, 1).
        stride: Of rows and columns.
        padding: Zeros on both sides of the rows and columns.
    """
    k, _, *window = weights[0].shape
    h, w = output_size(images[0].shape[2:], window, stride, padding)
    mixed: Tensor = mixed_convolution(
        torch.stack([padded_image(image, (h, w), window, stride, padding) for image in images]),
        torch.stack([padded_weight(weight.to(images[0].dtype)) for weight in weights]),
        torch.stack(list(biases)).float() if biases else None,
        coefficients.float(),
        list(stride),
        h,
        w,
        k,
    )
    return mixed


@torch.library.custom_op("mixmo::mixed_convolution", mutates_args=())
def mixed_convolution(
    images: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    coefficients: Tensor,
    stride: list[int],
    h: int,
    w: int,
    k: int,
) -> Tensor:
    """Return y (N, k, h, w) of images (M, N, H, W, 4), weights (M, R, run, k rounded up) and biases (M, k)."""
    from mixmo.kernels.stem_kernels import forward, forward_tile

    y = torch.empty((images.shape[1], h, w, k), dtype=images.dtype, device=images.device)
    coefficients, tile = coefficients.contiguous(), forward_tile(k)
    with torch.cuda.device_of(images):  # Triton launches on the current one
        forward(images.contiguous(), weights.contiguous(), biases, coefficients, y, stride, tile)
    return y.permute(0, 3, 1, 2)


@torch.library.custom_op("mixmo::mixed_convolution_weight_gradient", mutates_args=())
def mixed_convolution_weight_gradient(
    dy: Tensor, images: Tensor, weights: Tensor, coefficients: Tensor, stride: list[int]
) -> Tensor:
    """Return the gradient by the weights."""
    from mixmo.kernels.stem_kernels import weight_gradient, weight_gradient_tile

    _, rows, run, _ = weights.shape
    tile = weight_gradient_tile(rows * run, dy.shape[1])
    with torch.cuda.device_of(images):
        dw = weight_gradient(nhwc(dy), images.contiguous(), rows, run, coefficients.contiguous(), stride, tile)
    return dw.to(weights.dtype)


@mixed_convolution.register_fake
def _(
    images: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    coefficients: Tensor,
    stride: list[int],
    h: int,
    w: int,
    k: int,
) -> Tensor:
    return images.new_empty((images.shape[1], h, w, k)).permute(0, 3, 1, 2)


@mixed_convolution_weight_gradient.register_fake
def _(dy: Tensor, images: Tensor, weights: Tensor, coefficients: Tensor, stride: list[int]) -> Tensor:
    return weights.new_empty(weights.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    images, weights, _, coefficients, ctx.stride, *_ = inputs
    ctx.save_for_backward(images, weights, coefficients)


def _backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    images, weights, coefficients = ctx.saved_tensors
    _, for_weights, for_biases, *_ = ctx.needs_input_grad
    dw = db = None
    if for_weights:
        dw = mixed_convolution_weight_gradient(dy, images, weights, coefficients, ctx.stride)
    if for_biases:
        n, k, h, w = dy.shape
        shares = (len(images) * coefficients).expand(-1, n, 1, h, w).flatten(1)
        db = (shares.to(dy.dtype) @ dy.permute(0, 2, 3, 1).reshape(-1, k)).float()
    return None, dw, db, None, None, None, None, None


mixed_convolution.register_autograd(_backward, setup_context=_keep)


def _keep_of_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    dy, images, _, coefficients, ctx.stride = inputs
    ctx.save_for_backward(images, coefficients)
    _, *ctx.size = dy.shape


def _backward_of_gradient(ctx: Any, ddw: Tensor) -> tuple[Any, ...]:
    """dw is linear in dy as y is in w: the gradient by dy is the convolution with ddw."""
    (images, coefficients), (k, h, w) = ctx.saved_tensors, ctx.size
    return mixed_convolution(images, ddw, None, coefficients, ctx.stride, h, w, k), None, None, None, None


mixed_convolution_weight_gradient.register_autograd(_backward_of_gradient, setup_context=_keep_of_gradient)


@functools.cache
def stem_is_right(device: torch.device) -> bool:
    """Whether the kernels run on this device, and agree with torch's convolutions on small images; else warn."""
    generator = torch.Generator(device).manual_seed(0)
    images = torch.randn(2, 4, 3, 16, 16, device=device, generator=generator).bfloat16()
    weights = torch.randn(2, 16, 3, 7, 7, device=device, generator=generator).bfloat16()
    shares = torch.rand(2, 4, 1, 8, 8, device=device, generator=generator)
    try:
        with torch.enable_grad():
            ours, theirs = weights.clone().requires_grad_(), weights.float().requires_grad_()
            found = mixed_stem(images.unbind(), ours.unbind(), (), shares, (2, 2), (3, 3)).float()
            each = [conv2d(x, w, stride=2, padding=3) for x, w in zip(images.float(), theirs, strict=True)]
            expected = 2 * sum(share * e for share, e in zip(shares, each, strict=True))
            both = (found, ours), (expected, theirs)
            dw, exact = (torch.autograd.grad(y.square().sum(), weight)[0] for y, weight in both)
        return agree([(found, expected), (dw, exact)], "the kernel of stems")
    except Exception as error:  # whatever a compiler or a driver raises: convolutions can do all of it
        return failed("the kernel of stems", error)
