"""First convolutions that cut M images into patches, and the mixing block behind them, as one matrix product.

The pixels x_m of a patch share one mixing coefficient a_m, so that mixing the pixels is mixing the features:

    M sum_m a_m (W_m x_m + b_m) = (W_1, ..., W_M) (M a_1 x_1, ..., M a_M x_M) + M sum_m a_m b_m

The result has the channels of a single network; M convolutions would have M times as many features to write and mix.
"""

from collections.abc import Sequence
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format


def cut_patches(copies: Sequence[nn.Module], image: Tensor, coefficients: Tensor) -> bool:
    """Whether the copies are plain convolutions that cut patches, each with one of the coefficients (M, N, 1, h, w)."""
    first = copies[0]
    if not (plain(first) and all(plain(copy) and geometry(copy) == geometry(first) for copy in copies)):
        return False
    if first.stride != first.kernel_size or first.padding not in ((0, 0), "valid") or first.dilation != (1, 1):
        return False
    return coefficients.shape[-2:] in (_grid(first, image), (1, 1))


def mixed_patches(copies: Sequence[nn.Module], images: Sequence[Tensor], coefficients: Tensor) -> Tensor:
    """Return the mixed encodings of the images (N, K, h, w)."""
    convolutions = [copy for copy in copies if isinstance(copy, nn.Conv2d)]
    (p, q), (h, w) = convolutions[0].stride, _grid(convolutions[0], images[0])
    shares = len(copies) * coefficients
    pixels = []
    for share, image in zip(shares, images, strict=True):
        whole = image[..., : h * p, : w * q]  # what lies beyond makes no whole patch
        patches_NChpwq = whole.unflatten(-1, (w, q)).unflatten(-3, (h, p))
        mixed = (share[:, :, :, None, :, None] * patches_NChpwq).to(image.dtype)
        pixels.append(mixed.permute(0, 2, 4, 1, 3, 5).flatten(3))
    weight = torch.cat([convolution.weight.flatten(1) for convolution in convolutions], 1)
    features = F.linear(torch.cat(pixels, -1), weight).permute(0, 3, 1, 2)
    if biases := [convolution.bias for convolution in convolutions if convolution.bias is not None]:
        bias = torch.stack([share * row[:, None, None] for share, row in zip(shares, biases, strict=True)]).sum(0)
        features = (features + bias).to(features.dtype)
    return in_format_of(convolutions[0], features)


def in_format_of(layer: nn.Conv2d, features: Tensor) -> Tensor:
    """Return features in channels_last only if the convolution's own would be; tensors of one channel are both."""
    channels_last = suggest_memory_format(layer.weight) is torch.channels_last
    return features if channels_last else features.contiguous()


def plain(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether a layer computes a convolution and nothing else."""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return type(layer) is nn.Conv2d and layer.groups == 1 and not any(hooks) and "forward" not in vars(layer)


def geometry(layer: nn.Conv2d) -> tuple[object, ...]:
    return layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.padding_mode, layer.bias is None


def _grid(layer: nn.Conv2d, image: Tensor) -> tuple[int, int]:
    return image.shape[-2] // layer.stride[0], image.shape[-1] // layer.stride[1]
