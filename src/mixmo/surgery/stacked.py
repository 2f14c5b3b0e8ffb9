"""M first convolutions of M images as one convolution of their stacked channels.

    y_m = W_m * x_m for all m:   y = blockdiag(W_1, ..., W_M) * (x_1, ..., x_M)

Tensor cores read channels in groups of 8. An image of 3 channels leaves 5 of them empty; two images fill 6. Where the
convolution cuts the image into patches, each with one mixing coefficient a_m, mixing the pixels is mixing the features,
and one convolution with the output channels of a single network does both:

    M sum_m a_m (W_m * x_m + b_m) = (W_1, ..., W_M) * (M a_1 x_1, ..., M a_M x_M) + M sum_m a_m b_m
"""

from collections.abc import Sequence
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUP = 8  # channels that tensor cores read at once in half precision


def encode(copies: Sequence[nn.Module], images: Sequence[Tensor]) -> list[Tensor]:
    """Return each copy's encoding of its own image."""
    if stackable(copies) and on_tensor_cores(images[0]):
        return stacked(copies, images)
    return [copy(x) for copy, x in zip(copies, images, strict=True)]


def mixes_patches(copies: Sequence[nn.Module], images: Sequence[Tensor], coefficients: Tensor) -> bool:
    """Whether the copies read patches of which each has one coefficient (M, N, 1, h, w)."""
    first = copies[0]
    if not (len(images) == len(copies) and stackable(copies) and on_tensor_cores(images[0]) and _plain(first)):
        return False
    if first.stride != first.kernel_size or first.padding not in ((0, 0), "valid") or first.dilation != (1, 1):
        return False
    height, width = (side // step for side, step in zip(images[0].shape[-2:], first.stride, strict=True))
    return coefficients.shape[-2:] in ((height, width), (1, 1))


def mixed_patches(copies: Sequence[nn.Module], images: Sequence[Tensor], coefficients: Tensor) -> Tensor:
    """Return the mixed encodings of the images, M sum_m a_m (W_m * x_m + b_m)."""
    convolutions = [copy for copy in copies if isinstance(copy, nn.Conv2d)]
    first, members = convolutions[0], len(copies)
    shares = members * coefficients
    pixels = shares
    if coefficients.shape[-2:] != (1, 1):
        pixels = shares.repeat_interleave(first.stride[0], -2).repeat_interleave(first.stride[1], -1)
        height, width = pixels.shape[-2:]
        images = [image[..., :height, :width] for image in images]  # what lies beyond makes no whole patch
    mixed = torch.cat([share * image for share, image in zip(pixels, images, strict=True)], 1)
    padding = (0, 0, 0, 0, 0, GROUP - members * first.in_channels)
    weight = F.pad(torch.cat([copy.weight for copy in convolutions], 1), padding)
    features = F.conv2d(F.pad(mixed, padding), weight, None, first.stride)
    if first.bias is None:
        return features
    biases = [copy.bias for copy in convolutions if copy.bias is not None]
    bias = torch.stack([share * row[:, None, None] for share, row in zip(shares, biases, strict=True)]).sum(0)
    return (features + bias).to(features.dtype)


def on_tensor_cores(images: Tensor) -> bool:
    return images.is_cuda and torch.is_autocast_enabled("cuda")


def stackable(copies: Sequence[nn.Module]) -> bool:
    """Whether the copies are plain convolutions of one kind whose channels fit into one group together."""
    first = copies[0]
    if len(copies) == 1 or not _plain(first) or len(copies) * first.in_channels > GROUP:
        return False
    return all(_plain(copy) and _geometry(copy) == _geometry(first) for copy in copies)


def _plain(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    usual = type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
    return usual and not layer._forward_hooks and not layer._forward_pre_hooks


def _geometry(layer: nn.Conv2d) -> tuple[object, ...]:
    return layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.bias is None


def stacked(copies: Sequence[nn.Module], images: Sequence[Tensor]) -> list[Tensor]:
    """Compute the convolutions as one; the blocks outside of the diagonal are zeros."""
    convolutions = [copy for copy in copies if isinstance(copy, nn.Conv2d)]
    first, channels = convolutions[0], convolutions[0].in_channels
    padding = GROUP - len(copies) * channels
    x = F.pad(torch.cat(list(images), 1), (0, 0, 0, 0, 0, padding))
    weight = torch.cat(
        [
            F.pad(copy.weight, (0, 0, 0, 0, m * channels, GROUP - (m + 1) * channels))
            for m, copy in enumerate(convolutions)
        ]
    )
    bias = None if first.bias is None else torch.cat([copy.bias for copy in convolutions if copy.bias is not None])
    y = F.conv2d(x, weight, bias, first.stride, first.padding, first.dilation)
    return list(y.chunk(len(copies), 1))
