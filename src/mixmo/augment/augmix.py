"""AugMix: a convex sum of the image and of three chains of random operations on it (Hendrycks et al., 2020).

    x' = (1 - m) x + m sum_i w_i chain_i(x),   w ~ Dirichlet(1, 1, 1),   m ~ Beta(1, 1)

The operations are the paper's eight that do not overlap with CIFAR-C, plus identity and invert, which its authors' code
has too; a chain applies 1 to 4 of them. The severity is fixed, so that only the sign of an operation is random. There
is no Jensen-Shannon loss, as in the paper.

Each step processes all samples and chains at once, whatever their operations: one gather moves pixels (an affine map in
PIL's 16.16 fixed point, the identity for the others), one gather looks values up in a table (the identity for the
geometric ones). Integers throughout, so the chains equal PIL's pixel by pixel.
"""

import math

import torch
from torch import Tensor

from mixmo.augment.operations import equalized, sources

OPERATIONS = (
    "identity",
    "equalize",
    "posterize",
    "rotate",
    "solarize",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "invert",
)
CHAINS, DEPTH = 3, 4  # chains that are mixed; at most so many operations in each
AUGMIX_UNIFORMS = 1 + CHAINS * (2 + 2 * DEPTH)  # per sample m; per chain weight and depth; per step operation and sign
_CODE = {name: code for code, name in enumerate(OPERATIONS)}


def augmix(images_NHWC: Tensor, u_NP: Tensor) -> Tensor:
    """AugMix on uint8 images; returns floats in 0..255 (N, H, W, C), to be normalised next.

    Chains are 1 to 4 operations long, uniformly. Repeated copies of a sample share their operations, as in the authors'
    code, if they have the same uniform numbers.
    """
    N, H, W, C = images_NHWC.shape
    m_N111 = u_NP[:, :1, None, None]
    u_NBX = u_NP[:, 1:].reshape(N, CHAINS, 2 + 2 * DEPTH)  # B chains
    exponential_NB = -torch.log1p(-u_NBX[:, :, 0].clamp(1e-7, 1 - 1e-7))
    weight_NB = exponential_NB / exponential_NB.sum(dim=1, keepdim=True)

    length_NB1 = 1 + (DEPTH * u_NBX[:, :, 1:2]).long()
    operation_NBT = (len(OPERATIONS) * u_NBX[:, :, 2 : 2 + DEPTH]).long()
    used_NBT = torch.arange(DEPTH, device=u_NP.device) < length_NB1
    operation_NBT = torch.where(used_NBT, operation_NBT, _CODE["identity"])
    sign_NBT = torch.where(u_NBX[:, :, 2 + DEPTH :] < 0.5, 1, -1)

    chain_RHWC = images_NHWC[:, None].expand(-1, CHAINS, -1, -1, -1).reshape(-1, H, W, C)  # R = N * B
    chain_RHWC = operate(chain_RHWC, operation_NBT.view(-1, DEPTH), sign_NBT.view(-1, DEPTH))
    chain_NBHWC = chain_RHWC.view(N, CHAINS, H, W, C)
    mixture_NHWC = (weight_NB[:, :, None, None, None] * chain_NBHWC).sum(dim=1)
    return torch.lerp(images_NHWC.float(), mixture_NHWC, m_N111)


def operate(images_RHWC: Tensor, operation_RT: Tensor, sign_RT: Tensor, severity: float = 3.0) -> Tensor:
    """T operations in turn on each uint8 image, given as indices into OPERATIONS and signs +1 or -1."""
    R, H, W, C = images_RHWC.shape
    signed_O1 = torch.arange(2 * len(OPERATIONS), device=images_RHWC.device)[:, None]  # 2 operation + (sign is -1)
    source_OP, inside_OP = sources(_affine(signed_O1, H, W, severity), H, W)
    signed_RT = 2 * operation_RT + (sign_RT < 0)
    pixels_RPC = images_RHWC.reshape(R, H * W, C)
    for t in range(operation_RT.shape[1]):
        table_RVC = _table(pixels_RPC, operation_RT[:, t], severity).expand(-1, -1, C)
        moved_RPC = pixels_RPC.gather(1, source_OP[signed_RT[:, t], :, None].expand(-1, -1, C))
        pixels_RPC = table_RVC.gather(1, moved_RPC.long()) * inside_OP[signed_RT[:, t], :, None]
    return pixels_RPC.view(R, H, W, C)


def _affine(signed_O1: Tensor, H: int, W: int, severity: float) -> list[Tensor]:
    """The six coefficients of each signed operation, from constants of the host: no copy to the device."""
    plus, minus = _affine_maps(1, H, W, severity), _affine_maps(-1, H, W, severity)
    coefficients = []
    for i, same in enumerate(plus["identity"]):
        value_O1 = torch.full_like(signed_O1, same)
        for name in plus:
            for offset, value in enumerate((plus[name][i], minus[name][i])):
                if value != same:
                    value_O1 = torch.where(signed_O1 == 2 * _CODE[name] + offset, value, value_O1)
        coefficients.append(value_O1)
    return coefficients


def _affine_maps(sign: int, H: int, W: int, severity: float) -> dict[str, list[int]]:
    """name -> (a, b, c, d, e, f) times 2^16: pixel (x, y) comes from (a x + b y + c, d x + e y + f), rounded down.

    As PIL's nearest-neighbour Image.transform, which maps the centre (x + 1/2, y + 1/2).
    """
    angle, shear, shift = (sign * _level(severity, 0, high) for high in (math.radians(30), 0.3, 0.45))
    cos, sin = math.cos(angle), math.sin(angle)
    maps = {
        "identity": (1, 0, 0, 0, 1, 0),
        "rotate": (cos, -sin, (W - cos * W + sin * H) / 2, sin, cos, (H - sin * W - cos * H) / 2),
        "shear_x": (1, shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, 0),
        "translate_x": (1, 0, shift * W, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift * H),
    }
    centred = {name: (a, b, c + (a + b) / 2, d, e, f + (d + e) / 2) for name, (a, b, c, d, e, f) in maps.items()}
    return {name: [math.floor(value * 2**16 + 0.5) for value in values] for name, values in centred.items()}


def _table(pixels_RPC: Tensor, operation_R: Tensor, severity: float) -> Tensor:
    """New value of each of the 256 values in each image and channel, uint8 (R, 256, C)."""
    value_V1 = torch.arange(256, device=pixels_RPC.device)[:, None]
    dropped = 2 ** (8 - int(_level(severity, 4, 8)))  # posterize keeps the upper bits
    tables = {
        "posterize": value_V1 // dropped * dropped,
        "solarize": torch.where(value_V1 < _level(severity, 0, 256), value_V1, 255 - value_V1),
        "invert": 255 - value_V1,
        "equalize": equalized(pixels_RPC),
    }
    table = value_V1.byte()
    for name, new in tables.items():
        table = torch.where((operation_R == _CODE[name])[:, None, None], new.byte(), table)
    return table


def _level(severity: float, low: float, high: float) -> float:
    """Strength of an operation of range low..high at a severity of 0..30."""
    return low + severity / 30 * (high - low)
