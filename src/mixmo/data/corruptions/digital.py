"""What happens to an image in a computer: resampled, compressed, warped."""

from functools import partial
from io import BytesIO

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from mixmo.data.corruptions import separable
from mixmo.data.corruptions.base import CORRUPTIONS, Draw


@CORRUPTIONS.add("pixelate")
def pixelate(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """Reduced to a share c of the size by box averaging, and enlarged again, as PIL does both."""
    c = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    height, width = x_NHWC.shape[1:3]
    levels_NHWC = x_NHWC * 255
    for h, w in ((int(height * c), int(width * c)), (height, width)):
        for along, to in ((separable.columns, w), (separable.rows, h)):
            levels_NHWC = (along(levels_NHWC, partial(separable.box_matrix, to=to)) + 0.5).floor()
    return levels_NHWC / 255


@CORRUPTIONS.add("jpeg_compression")
def jpeg_compression(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """JPEG of quality c, by PIL on the CPU: the only one that goes image by image."""
    c = (80, 65, 58, 50, 40)[severity - 1]
    images_NHWC = (x_NHWC * 255).round().to("cpu", torch.uint8).numpy()
    decoded = np.empty_like(images_NHWC)
    for index, image in enumerate(images_NHWC):
        buffer = BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=c)
        with Image.open(buffer) as compressed:
            decoded[index] = np.asarray(compressed)
    return torch.from_numpy(decoded).to(x_NHWC) / 255


ELASTIC = ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))


@CORRUPTIONS.add("elastic_transform")
def elastic_transform(x_NHWC: Tensor, severity: int, draw: Draw) -> Tensor:
    """A random affine map, then a smooth random displacement of every pixel.

    Three points, a third of the image from its centre, move by up to `jitter` each way; displacements are uniform noise
    blurred by `sigma`, times `alpha`; all in shares of the side. Severity 1 is the affine map alone.
    """
    alpha, sigma, jitter = ELASTIC[severity - 1]
    samples, height, width, _ = x_NHWC.shape
    side = min(height, width)
    here_HW2 = torch.stack(torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy"), 2).to(x_NHWC)
    corner_32 = torch.tensor([width // 2, height // 2]) + side // 3 * torch.tensor([[1, 1], [1, -1], [-1, -1]])
    corner_32 = corner_32.to(x_NHWC)
    moved_N32 = corner_32 + draw.uniform(-jitter * side, jitter * side, (samples, 3, 2))
    # A pixel of the new image is found where the map from the moved points back to the original ones leads.
    back_N32 = torch.linalg.solve(F.pad(moved_N32, (0, 1), value=1.0), corner_32.expand(samples, 3, 2))
    there_NHW2 = torch.einsum("hwk,nkc->nhwc", F.pad(here_HW2, (0, 1), value=1.0), back_N32)
    affine_NHWC = _look_up(x_NHWC, there_NHW2, centred=True)
    noise_NHW2 = torch.stack([draw.uniform(-1, 1, (samples, height, width)) for _ in range(2)], 3)
    shift_NHW2 = alpha * side * separable.gaussian(noise_NHW2, sigma * side, truncate=3.0, mirror=True)
    return _look_up(affine_NHWC, here_HW2 + shift_NHW2, centred=False)


def _look_up(x_NHWC: Tensor, at_NHW2: Tensor, centred: bool) -> Tensor:
    """The image at these (x, y), bilinearly; beyond its border it is mirrored at the last pixels' centres, or rims."""
    size_2 = torch.tensor([x_NHWC.shape[2], x_NHWC.shape[1]]).to(x_NHWC)
    grid_NHW2 = 2 * at_NHW2 / (size_2 - 1) - 1 if centred else (2 * at_NHW2 + 1) / size_2 - 1
    found_NCHW = F.grid_sample(x_NHWC.permute(0, 3, 1, 2), grid_NHW2, padding_mode="reflection", align_corners=centred)
    return found_NCHW.permute(0, 2, 3, 1)
