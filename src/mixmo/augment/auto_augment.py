"""TrivialAugment and RandAugment: random operations of PIL on each image, in torchvision's ranges.

TrivialAugmentWide (Müller and Hutter, 2021) applies one of 14 operations at one of 31 magnitudes. RandAugment (Cubuk et
al., 2020) applies two of them in turn, each at magnitude 9. Signs are random.

Every image of a batch has its own operation, and the same few kernels process all of them: one gather moves pixels, one
gather looks values up in a table, and one interpolation changes brightness, colour, contrast or sharpness. An image
passes unchanged through the parts that its operation does not use. Results equal those of torchvision on PIL images,
pixel by pixel; compiled for a GPU, which fuses products and sums, about one value in 10,000 differs by one level.

torchvision.transforms.v2 and Kornia are not used: both draw one operation per call, on the host, for all images of a
batch (Kornia draws only its magnitude per image, and in other ranges).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mixmo.augment.operations import enhance, equalized, sources, stretched

OPERATIONS = (
    "identity",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "brightness",
    "color",
    "contrast",
    "sharpness",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
)
BINS = 31  # magnitudes of an operation, evenly spaced
TRIVIAL_AUGMENT_UNIFORMS = 3  # operation, magnitude, sign
RAND_AUGMENT_STEPS, RAND_AUGMENT_BIN = 2, 9
RAND_AUGMENT_UNIFORMS = 2 * RAND_AUGMENT_STEPS  # per step: operation, sign
Ranges = dict[str, tuple[float, float]]  # operation -> first and last magnitude
_CODE = {name: code for code, name in enumerate(OPERATIONS)}


def trivial_augment(images_NHWC: Tensor, u_N3: Tensor) -> Tensor:
    """TrivialAugmentWide on uint8 images of 1 or 3 channels: one operation of random magnitude and sign."""
    operation_N, bin_N = (len(OPERATIONS) * u_N3[:, 0]).long(), (BINS * u_N3[:, 1]).long()
    return operate(images_NHWC, operation_N, magnitude(operation_N, bin_N, u_N3[:, 2] < 0.5, trivial_ranges()))


def rand_augment(images_NHWC: Tensor, u_NP: Tensor) -> Tensor:
    """RandAugment on uint8 images of 1 or 3 channels: two operations at magnitude 9 of 0..30 and random sign."""
    _, H, W, _ = images_NHWC.shape
    for step in range(RAND_AUGMENT_STEPS):
        u_N2 = u_NP[:, 2 * step : 2 * step + 2]
        operation_N = (len(OPERATIONS) * u_N2[:, 0]).long()
        bin_N = torch.full_like(operation_N, RAND_AUGMENT_BIN)
        magnitude_N = magnitude(operation_N, bin_N, u_N2[:, 1] < 0.5, rand_ranges(H, W))
        images_NHWC = operate(images_NHWC, operation_N, magnitude_N)
    return images_NHWC


# Name in a recipe -> function of uint8 images (N, H, W, C) and uniform numbers (N, P), and P.
AUTO_AUGMENT: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "trivialaugment": (trivial_augment, TRIVIAL_AUGMENT_UNIFORMS),
    "randaugment": (rand_augment, RAND_AUGMENT_UNIFORMS),
}


def trivial_ranges() -> Ranges:
    """TrivialAugmentWide's magnitudes: shifts in pixels, whatever the size of the image."""
    return _ranges(shear=0.99, shift_x=32.0, shift_y=32.0, angle=135.0, change=0.99, bits=2)


def rand_ranges(H: int, W: int) -> Ranges:
    """RandAugment's magnitudes: shifts of at most 150 / 331 of the image."""
    return _ranges(shear=0.3, shift_x=150 / 331 * W, shift_y=150 / 331 * H, angle=30.0, change=0.9, bits=4)


def _ranges(shear: float, shift_x: float, shift_y: float, angle: float, change: float, bits: int) -> Ranges:
    last = {
        "shear_x": shear,
        "shear_y": shear,
        "translate_x": shift_x,
        "translate_y": shift_y,
        "rotate": angle,
        **dict.fromkeys(("brightness", "color", "contrast", "sharpness"), change),
    }
    return {name: (0.0, high) for name, high in last.items()} | {"posterize": (8.0, bits), "solarize": (255.0, 0.0)}


def magnitude(operation_N: Tensor, bin_N: Tensor, positive_N: Tensor, ranges: Ranges) -> Tensor:
    """Signed magnitude of each image's operation, float64 (N,); 0 where it has none.

    torchvision's are these in float32, by which TrivialAugment's shift of 16 pixels is one of 15 there.
    """
    magnitude_N = torch.zeros_like(bin_N, dtype=torch.float64)
    for name, (first, last) in ranges.items():
        step = (last - first) / (BINS - 1)  # a product gives the same bits on every device; a division may not
        magnitude_N = torch.where(operation_N == _CODE[name], first + step * bin_N.double(), magnitude_N)
    has_sign_N = operation_N < _CODE["posterize"]
    return torch.where(has_sign_N & ~positive_N, -magnitude_N, magnitude_N)


def operate(images_NHWC: Tensor, operation_N: Tensor, magnitude_N: Tensor) -> Tensor:
    """One operation on each uint8 image, as torchvision does with PIL images: nearest neighbour, black outside.

    Args:
        images_NHWC: Images, uint8, of 1 or 3 channels.
        operation_N: Indices into OPERATIONS.
        magnitude_N: Tangent of a shear, pixels of a translation (rounded towards 0), degrees counter-clockwise,
            factor - 1, bits to keep, or threshold; float64.
    """
    N, H, W, C = images_NHWC.shape
    pixels_NPC = images_NHWC.reshape(N, H * W, C)
    source_NP, inside_NP = sources(_affine(operation_N, magnitude_N, H, W), H, W)
    moved_NPC = pixels_NPC.gather(1, source_NP[..., None].expand(-1, -1, C)) * inside_NP[..., None]
    looked_up_NPC = _table(pixels_NPC, operation_N, magnitude_N).gather(1, moved_NPC.long())
    color_N, contrast_N, sharpness_N = (operation_N == _CODE[name] for name in ("color", "contrast", "sharpness"))
    changed_N = color_N | contrast_N | sharpness_N | (operation_N == _CODE["brightness"])
    factor_N = torch.where(changed_N, 1 + magnitude_N, 1.0).float()
    return enhance(looked_up_NPC.view(N, H, W, C), factor_N, color_N, contrast_N, sharpness_N)


def _affine(operation_N: Tensor, magnitude_N: Tensor, H: int, W: int) -> list[Tensor]:
    """Coefficients of `sources`, int32 (N, 1): a rotation about the centre, a shear or a shift, else the identity."""

    def of(name: str) -> Tensor:
        return torch.where(operation_N == _CODE[name], magnitude_N, 0.0)

    angle_N = torch.deg2rad(of("rotate"))
    cos_N, sin_N = angle_N.cos(), angle_N.sin()
    b_N, d_N = of("shear_x") - sin_N, of("shear_y") + sin_N
    c_N = (W - cos_N * W + sin_N * H) / 2 - of("translate_x").trunc() + (cos_N + b_N) / 2
    f_N = (H - sin_N * W - cos_N * H) / 2 - of("translate_y").trunc() + (d_N + cos_N) / 2
    return [(value_N * 2**16 + 0.5).floor().int()[:, None] for value_N in (cos_N, b_N, c_N, d_N, cos_N, f_N)]


def _table(pixels_NPC: Tensor, operation_N: Tensor, magnitude_N: Tensor) -> Tensor:
    """New value of each of the 256 values in each image and channel, uint8 (N, 256, C)."""
    operation_N11, magnitude_N11 = operation_N[:, None, None], magnitude_N[:, None, None]
    value_V1 = torch.arange(256, device=pixels_NPC.device)[:, None]
    dropped_N11 = torch.where(operation_N11 == _CODE["posterize"], 8 - magnitude_N11.round(), 0).long()
    threshold_N11 = torch.where(operation_N11 == _CODE["solarize"], magnitude_N11, 256.0)
    table_NVC = value_V1 >> dropped_N11 << dropped_N11
    table_NVC = torch.where(value_V1 < threshold_N11, table_NVC, 255 - value_V1)
    table_NVC = torch.where(operation_N11 == _CODE["autocontrast"], stretched(pixels_NPC), table_NVC)
    return torch.where(operation_N11 == _CODE["equalize"], equalized(pixels_NPC), table_NVC).byte()
