"""Images and weights of first convolutions as the kernels of `stem_kernels` read them.

Images have four channels and their zeros outside: then the pixels of a window's row are one run of 4 S numbers in
memory that begins at a whole word, and no read tests what is outside. A run is extended to a power of two, by zeros in
the weights and by the next pixels in the images.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from mixmo.kernels.shapes import rounded

CHANNELS = 4  # of the padded images
LARGEST = 16  # side of a window


def output_size(
    size: Sequence[int], window: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> tuple[int, int]:
    """Return the height and width of a convolution's result.

    >>> output_size((224, 225), (7, 7), (2, 2), (3, 3))
    (112, 113)
    """
    h, w = ((size[i] + 2 * padding[i] - window[i]) // stride[i] + 1 for i in (0, 1))
    return h, w


def run_length(columns: int) -> int:
    """Return the numbers of a window's row that are read, a power of two: four of each pixel and some of the next ones.

    >>> run_length(7), run_length(3), run_length(1)
    (32, 16, 16)
    """
    return max(16, power_of_two(CHANNELS * columns))


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is not less."""
    return 1 << (size - 1).bit_length()


def output_block(k: int) -> int:
    """Return the number of output channels that a program computes."""
    return min(128, max(16, power_of_two(k)))


def padded_image(
    image: Tensor, out: Sequence[int], window: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Return the pixels that the windows of a result of `out` positions read, and zeros outside: (N, H, W, 4)."""
    (_, c, h, w), (top, left) = image.shape, padding
    height = (out[0] - 1) * stride[0] + window[0]
    width = rounded((out[1] - 1) * stride[1] + run_length(window[1]) // CHANNELS, 4)
    sides = (0, CHANNELS - c, left, width - left - w, top, height - top - h)  # those of pixels not read are negative
    return F.pad(image.permute(0, 2, 3, 1), sides)


def padded_weight(weight: Tensor) -> Tensor:
    """Return the weights (R, run, K) of weights (K, C, R, S), K rounded up to whole blocks."""
    k, c, _, columns = weight.shape
    more = (0, rounded(k, output_block(k)) - k, 0, CHANNELS - c, 0, run_length(columns) // CHANNELS - columns)
    return F.pad(weight.permute(2, 3, 1, 0), more).flatten(1, 2)
