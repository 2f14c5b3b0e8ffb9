"""Random crop (padded or resized) and flip, centre crop at test time, resizing, normalisation."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def crop_flip(
    images_DHWC: Tensor, index_N: Tensor, u_N3: Tensor, pad: int = 4, flip: bool = True, size: int | None = None
) -> Tensor:
    """Samples `index_N` of the data set, padded, cropped and flipped, in one gather: uint8 (N, H, W, C).

    u_N3 holds, for each sample, the row offset and the column offset (uniform over all places in the padded image) and
    the flip (below 1/2). Padding is black (0) and comes before normalisation, as in the usual pipeline. The crop is as
    large as the image, or `size` x `size`.
    """
    _, H, W, _ = images_DHWC.shape
    h, w = (size or H), (size or W)
    row_N1 = _offset(u_N3[:, 0], H + 2 * pad - h) - pad
    column_N1 = _offset(u_N3[:, 1], W + 2 * pad - w) - pad
    column_NW = torch.arange(w, device=u_N3.device).expand(len(u_N3), w)
    if flip:
        column_NW = torch.where(u_N3[:, 2:] < 0.5, w - 1 - column_NW, column_NW)
    row_NH1 = (torch.arange(h, device=u_N3.device) + row_N1)[:, :, None]
    column_N1W = (column_NW + column_N1)[:, None, :]
    inside_NHW = (row_NH1 >= 0) & (row_NH1 < H) & (column_N1W >= 0) & (column_N1W < W)
    pixels_NHWC = images_DHWC[index_N[:, None, None], row_NH1.clamp(0, H - 1), column_N1W.clamp(0, W - 1)]
    return pixels_NHWC * inside_NHW[..., None]


RATIO = 4 / 3  # the widest crop of `resized_crop`, and the inverse of the narrowest


def resized_crop(
    images_DHWC: Tensor, index_N: Tensor, u_N5: Tensor, size: int, scale: float, flip: bool = True
) -> Tensor:
    """Samples `index_N`, a random part of each resized to `size` x `size`, flipped: uint8 (N, size, size, C).

    The usual crop of ImageNet (Inception's; torchvision's RandomResizedCrop): a share U(scale, 1) of the area, width to
    height log-uniform in 3/4..4/3, anywhere in the image; bilinear. u_N5 holds, for each sample, the share, the ratio,
    the row, the column and the flip (below 1/2). Where a side is too long, torchvision draws again, up to ten times;
    here it is clipped to that of the image. There is no antialiasing, since stored images are little larger than
    `size`.
    """
    _, H, W, _ = images_DHWC.shape
    area_N = (scale + (1 - scale) * u_N5[:, 0]) * (H * W)
    ratio_N = torch.exp(math.log(RATIO) * (2 * u_N5[:, 1] - 1))
    h_N1 = (area_N / ratio_N).sqrt().round().clamp(1, H)[:, None]
    w_N1 = (area_N * ratio_N).sqrt().round().clamp(1, W)[:, None]
    out_S = torch.arange(size, device=u_N5.device)
    out_NS = out_S.expand(len(u_N5), size)
    if flip:
        out_NS = torch.where(u_N5[:, 4:] < 0.5, size - 1 - out_NS, out_NS)
    row0_NS, row1_NS, down_NS = _between(out_S.expand(len(u_N5), size), h_N1, size)
    column0_NS, column1_NS, right_NS = _between(out_NS, w_N1, size)
    top_N1 = _offset(u_N5[:, 2], H - h_N1[:, 0])
    left_N1 = _offset(u_N5[:, 3], W - w_N1[:, 0])

    def line(row_NS: Tensor) -> Tensor:
        row_NS1 = (row_NS + top_N1)[:, :, None]
        first = images_DHWC[index_N[:, None, None], row_NS1, (column0_NS + left_N1)[:, None, :]].float()
        second = images_DHWC[index_N[:, None, None], row_NS1, (column1_NS + left_N1)[:, None, :]].float()
        return torch.lerp(first, second, right_NS[:, None, :, None])

    return torch.lerp(line(row0_NS), line(row1_NS), down_NS[:, :, None, None]).round().to(torch.uint8)


def _offset(u_N: Tensor, room: Tensor | int) -> Tensor:
    """Uniform integers from 0 to `room`, (N, 1)."""
    return ((room + 1) * u_N).floor().long()[:, None]


def _between(out_NS: Tensor, side_N1: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each output position: its two neighbours among `side` input positions, and the weight of the second."""
    place_NS = ((out_NS + 0.5) * side_N1 / size - 0.5).clamp(min=0)
    first_NS = place_NS.floor()
    second_NS = torch.minimum(first_NS + 1, side_N1 - 1)
    return first_NS.long(), second_NS.long(), place_NS - first_NS


def enlarge(images_NHWC: Tensor, size: int | None) -> Tensor:
    """Resize uint8 images whose shorter side is below `size` pixels to `size` x `size`, bilinearly."""
    if size is None or min(images_NHWC.shape[1:3]) >= size:
        return images_NHWC
    x_NCHW = F.interpolate(images_NHWC.permute(0, 3, 1, 2).float(), (size, size), mode="bilinear")
    return x_NCHW.round().to(torch.uint8).permute(0, 2, 3, 1)


def centre(images_NHWC: Tensor, size: int | None) -> Tensor:
    """Centre crop `size` x `size` of each image, for test time; smaller images are enlarged."""
    if size is None:
        return images_NHWC
    images_NHWC = enlarge(images_NHWC, size)
    top, left = (images_NHWC.shape[1] - size) // 2, (images_NHWC.shape[2] - size) // 2
    return images_NHWC[:, top : top + size, left : left + size]


def to_shape(images_NHWC: Tensor, channels: int, height: int, width: int) -> Tensor:
    """Convert uint8 images to these channels and this size: grey repeated, colours to luma, sides resized.

    >>> to_shape(torch.tensor([[[[10], [30]]]], dtype=torch.uint8), 3, 1, 1)
    tensor([[[[20, 20, 20]]]], dtype=torch.uint8)
    """
    x_NCHW = images_NHWC.permute(0, 3, 1, 2)
    if x_NCHW.shape[1] == 3 and channels == 1:
        luma_C11 = torch.tensor([0.299, 0.587, 0.114], device=x_NCHW.device)[:, None, None]
        x_NCHW = (x_NCHW * luma_C11).sum(1, keepdim=True).round().to(torch.uint8)
    if x_NCHW.shape[2:] != (height, width):
        resized_NCHW = F.interpolate(x_NCHW.float(), (height, width), mode="bilinear", antialias=True)
        x_NCHW = resized_NCHW.round().to(torch.uint8)
    return x_NCHW.expand(-1, channels, -1, -1).permute(0, 2, 3, 1).contiguous()


def normalise(images_NHWC: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x / 255 - mean) / std, float32 (N, C, H, W) in channels_last memory; x is uint8, or float in 0..255 (AugMix)."""
    mean_C, std_C = _constant(mean, images_NHWC.device), _constant(std, images_NHWC.device)
    return ((images_NHWC.float() / 255 - mean_C) / std_C).permute(0, 3, 1, 2)


def _constant(values: Sequence[float], device: torch.device) -> Tensor:
    """A vector made on the device: a copy from the host would sync, which CUDA graphs do not allow."""
    return torch.stack([torch.full((), value, device=device) for value in values])
