"""First convolutions with overlapping windows, and the mixing block behind them, as one Triton kernel in training."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mixmo.kernels.devices import available
from mixmo.kernels.stem import mixed_stem, stem_is_right
from mixmo.kernels.stem_layout import CHANNELS, LARGEST, output_size
from mixmo.surgery.patches import geometry, in_format_of, plain
from mixmo.utils.device import HALF


def overlapping_windows(copies: Sequence[nn.Module], images: Sequence[Tensor], coefficients: Tensor) -> bool:
    """Whether the kernel computes the copies in training: plain convolutions of images, in half precision on a GPU."""
    first = copies[0]
    if not (plain(first) and all(plain(copy) and geometry(copy) == geometry(first) for copy in copies)):
        return False
    if isinstance(first.padding, str) or first.padding_mode != "zeros" or first.dilation != (1, 1):
        return False
    if len(copies) < 2 or not first.training:
        return False
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return False  # custom operators do not support torch.func
    if any(given.requires_grad for given in (*images, coefficients)):
        return False
    if first.in_channels > CHANNELS or max(first.kernel_size) > LARGEST:
        return False
    n, _, *size = images[0].shape
    out = output_size(size, first.kernel_size, first.stride, first.padding)
    if coefficients.shape[:2] != (len(copies), n) or coefficients.shape[-2:] not in (out, (1, 1)):
        return False
    device = images[0].device
    if half_precision(images[0], first) is None or not available(device):
        return False
    return torch.compiler.is_compiling() or stem_is_right(device)  # the engine asks before it compiles


def mixed_windows(copies: Sequence[nn.Module], images: Sequence[Tensor], coefficients: Tensor) -> Tensor:
    """Return the mixed encodings of the images (N, K, h, w)."""
    convolutions = [copy for copy in copies if isinstance(copy, nn.Conv2d)]
    first = convolutions[0]
    assert not isinstance(first.padding, str)
    dtype = half_precision(images[0], first)
    features = mixed_stem(
        [image.to(dtype) for image in images],
        [convolution.weight for convolution in convolutions],
        [convolution.bias for convolution in convolutions if convolution.bias is not None],
        coefficients,
        first.stride,
        first.padding,
    )
    return in_format_of(first, features)


def half_precision(image: Tensor, layer: nn.Conv2d) -> torch.dtype | None:
    """Return the type in which a convolution computes, if it is a half-precision one."""
    device = image.device.type
    if torch.is_autocast_enabled(device) and image.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    else:
        dtype = image.dtype if image.dtype == layer.weight.dtype else torch.float32
    return dtype if dtype in HALF.values() else None
