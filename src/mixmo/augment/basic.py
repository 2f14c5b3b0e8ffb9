"""The standard pipeline of the paper: pad by 4 pixels, crop at random, flip left and right, normalise."""

from collections.abc import Sequence

import torch
from torch import Tensor


def crop_flip(images_DHWC: Tensor, index_N: Tensor, u_N3: Tensor, pad: int = 4, flip: bool = True) -> Tensor:
    """Samples `index_N` of the resident data set, padded, cropped and flipped, in one gather: uint8 (N, H, W, C).

    u_N3 holds, for each sample, the row offset and the column offset (uniform in 0..2 pad) and the flip (below 1/2).
    Padding is black (0) and comes before normalisation, as in the usual pipeline.
    """
    _, H, W, _ = images_DHWC.shape
    offset_N2 = ((2 * pad + 1) * u_N3[:, :2]).floor().long().clamp(max=2 * pad) - pad
    row_H = torch.arange(H, device=u_N3.device)
    column_NW = torch.arange(W, device=u_N3.device).expand(len(u_N3), W)
    if flip:
        column_NW = torch.where(u_N3[:, 2:] < 0.5, W - 1 - column_NW, column_NW)
    row_NH1 = (row_H + offset_N2[:, :1])[:, :, None]
    column_N1W = (column_NW + offset_N2[:, 1:])[:, None, :]
    inside_NHW = (row_NH1 >= 0) & (row_NH1 < H) & (column_N1W >= 0) & (column_N1W < W)
    pixels_NHWC = images_DHWC[index_N[:, None, None], row_NH1.clamp(0, H - 1), column_N1W.clamp(0, W - 1)]
    return pixels_NHWC * inside_NHW[..., None]


def normalise(images_NHWC: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x / 255 - mean) / std, float32 (N, C, H, W) in channels_last memory; x is uint8, or float in 0..255 (AugMix)."""
    mean_C, std_C = _constant(mean, images_NHWC.device), _constant(std, images_NHWC.device)
    return ((images_NHWC.float() / 255 - mean_C) / std_C).permute(0, 3, 1, 2)


def _constant(values: Sequence[float], device: torch.device) -> Tensor:
    """A vector made on the device: copying one there would wait for it, and CUDA graphs refuse that."""
    return torch.stack([torch.full((), value, device=device) for value in values])
