"""Masks: from a requested ratio kappa to a region where one member is visible (paper, section 3.2, appendix "MSDA").

A kind is one pure function `draw(kappa_N, u_NP, h, w) -> mask_Nhw` of uniform numbers in [0, 1): it holds no generator,
never syncs with the device and gives the same mask eagerly, compiled and under CUDA graphs. The mask is float32, one
where the chosen member is visible and zero elsewhere. Its realised area seldom equals kappa, so the caller takes
kappa from the mask. Which member is the chosen one (inside or outside) is drawn by the caller too.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mixmo.utils.registry import Registry

Draw = Callable[[Tensor, Tensor, int, int], Tensor]


@dataclass(frozen=True)
class Mask:
    """One kind of mask."""

    draw: Draw  # (kappa (N,), u (N, P), h, w) -> (N, h, w)
    uniforms: Callable[[int, int], int]  # (h, w) -> P, uniform numbers needed per sample
    minimum: int  # smallest h and w


MASKS: Registry[Mask] = Registry("mask")


def _mask(name: str, uniforms: Callable[[int, int], int], minimum: int = 1) -> Callable[[Draw], Draw]:
    """Decorator: register the `draw` below under `name`."""

    def put(draw: Draw) -> Draw:
        MASKS.add(name)(Mask(draw, uniforms, minimum))
        return draw

    return put


@_mask("cut", uniforms=lambda h, w: 2)
def cut(kappa_N: Tensor, u_N2: Tensor, h: int, w: int) -> Tensor:
    """CutMix: a box of sides int(h sqrt(kappa)), int(w sqrt(kappa)) around a uniform centre, clipped at the border.

    The half-width is side // 2, so odd sides lose one pixel; with the clipping, kappa ~ Beta(2, 2) of mean 0.5 gives
    boxes of mean area 0.305 at 32 x 32, as in the authors' code.
    """
    root_N = kappa_N.sqrt()
    rows_Nh = _interval(root_N, u_N2[:, 0], h)
    columns_Nw = _interval(root_N, u_N2[:, 1], w)
    return (rows_Nh[:, :, None] & columns_Nw[:, None, :]).float()


def _interval(root_N: Tensor, u_N: Tensor, length: int) -> Tensor:
    """Positions within side // 2 of a uniform centre: centre - half <= position < centre + half."""
    half_N1 = ((length * root_N).floor() / 2).floor()[:, None]
    centre_N1 = (length * u_N).floor().clamp(max=length - 1)[:, None]
    position_L = torch.arange(length, device=u_N.device)
    return (position_L >= centre_N1 - half_N1) & (position_L < centre_N1 + half_N1)


@_mask("horizontal", uniforms=lambda h, w: 1)
def horizontal(kappa_N: Tensor, u_N1: Tensor, h: int, w: int) -> Tensor:
    """Horizontal concatenation: a vertical line; int(w kappa) columns are visible, on the left or on the right.

    The paper's definition. The authors' "stackhorizontal" splits rows: the two labels in their table may be swapped.
    """
    return _side(kappa_N, u_N1, w)[:, None, :].expand(-1, h, -1).float()


@_mask("vertical", uniforms=lambda h, w: 1)
def vertical(kappa_N: Tensor, u_N1: Tensor, h: int, w: int) -> Tensor:
    """Vertical concatenation: a horizontal line; int(h kappa) rows are visible, at the top or at the bottom.

    The paper's definition. The authors' "stackvertical" splits columns: the two labels in their table may be swapped.
    """
    return _side(kappa_N, u_N1, h)[:, :, None].expand(-1, -1, w).float()


def _side(kappa_N: Tensor, u_N1: Tensor, length: int) -> Tensor:
    """The first int(length kappa) positions, or, with probability 1/2, the last."""
    size_N1 = (length * kappa_N).floor()[:, None]
    position_L = torch.arange(length, device=u_N1.device)
    return torch.where(u_N1 < 0.5, position_L < size_N1, position_L >= length - size_N1)


BLOCK = 7  # PatchUp's block


@_mask("patchup", uniforms=lambda h, w: h * w, minimum=BLOCK)
def patchup(kappa_N: Tensor, u_NP: Tensor, h: int, w: int) -> Tensor:
    """PatchUp 2D: 7 x 7 blocks are visible around Bernoulli(gamma) seeds, the same in all channels.

    gamma = kappa h w / (49 (h - 6) (w - 6)). Seeds fall anywhere and blocks overlap, so the area only grows with kappa.
    """
    return blocks(kappa_N[:, None, None], u_NP.view(-1, h, w), BLOCK)


def blocks(kappa: Tensor | float, u_Nhw: Tensor, side: int) -> Tensor:
    """Squares of an odd side around random seeds; about kappa of the map would be covered if none overlapped."""
    h, w = u_Nhw.shape[-2:]
    seeds_Nhw = (u_Nhw < kappa * (h * w / (side**2 * (h - side + 1) * (w - side + 1)))).float()
    return F.max_pool2d(seeds_Nhw, side, stride=1, padding=side // 2)


DECAY = 3.0  # FMix's power of the frequency


@_mask("fmix", uniforms=lambda h, w: h * w)
def fmix(kappa_N: Tensor, u_NP: Tensor, h: int, w: int) -> Tensor:
    """FMix: the round(kappa h w) highest pixels of a low-pass filtered Gaussian map.

    The authors of MixMo published no FMix: this follows the FMix paper with its decay power 3.
    """
    order_NP = low_pass_noise(u_NP, h, w).flatten(1).argsort(dim=1, descending=True)
    first_NP = torch.arange(h * w, device=u_NP.device) < (kappa_N * (h * w)).round()[:, None]
    return torch.zeros_like(u_NP).scatter(1, order_NP, first_NP.float()).view(-1, h, w)


def low_pass_noise(u_NP: Tensor, h: int, w: int) -> Tensor:
    """Gaussian noise (N, h, w) with amplitude spectrum 1 / f^3, f the distance from zero, at least 1 / max(h, w).

    In the Hartley basis cas = cos + sin, which is real and orthogonal, white noise has independent coefficients and the
    filter is a product: drawing the coefficients leaves one transform instead of two Fourier transforms.
    """
    f_h1 = torch.fft.fftfreq(h, device=u_NP.device, dtype=u_NP.dtype)[:, None]
    f_w = torch.fft.fftfreq(w, device=u_NP.device, dtype=u_NP.dtype)
    frequency_hw = (f_h1.square() + f_w.square()).sqrt().clamp(min=1 / max(h, w))
    coefficients_Nhw = standard_normal(u_NP).view(-1, h, w) / frequency_hw**DECAY
    rows_Nhw = torch.matmul(_hartley(h, coefficients_Nhw), coefficients_Nhw)
    return torch.matmul(rows_Nhw, _hartley(w, coefficients_Nhw))


def _hartley(length: int, like: Tensor) -> Tensor:
    """cas(2 pi i j / L) / sqrt(L), symmetric and orthogonal, as a matrix (L, L)."""
    position_L = torch.arange(length, device=like.device)
    angle_LL = (2 * math.pi / length) * (position_L[:, None] * position_L % length).to(like.dtype)
    return (angle_LL.cos() + angle_LL.sin()) / math.sqrt(length)


@_mask("cow", uniforms=lambda h, w: 2 + h * w)
def cow(kappa_N: Tensor, u_NP: Tensor, h: int, w: int) -> Tensor:
    """CowMix: spots, where Gaussian-filtered noise lies below a threshold; the area does not follow kappa.

    p ~ U(0.2, 0.8), sigma log-uniform in 4..16 pixels, and a pixel is visible if its noise is at most
    mean + sqrt(2) erfinv(2 p - 1) std over the map, which is about p of them. The noise is zero outside of the map.
    """
    p_N11 = (0.2 + 0.6 * u_NP[:, 0])[:, None, None]
    sigma_N = 4.0 * 4.0 ** u_NP[:, 1]
    noise_Nhw = standard_normal(u_NP[:, 2:]).view(-1, h, w)
    map_Nhw = torch.bmm(torch.bmm(_gaussian(sigma_N, h), noise_Nhw), _gaussian(sigma_N, w))
    std_N11, mean_N11 = torch.std_mean(map_Nhw, dim=(1, 2), keepdim=True)
    return (map_Nhw <= mean_N11 + standard_normal(p_N11) * std_N11).float()


def _gaussian(sigma_N: Tensor, length: int) -> Tensor:
    """(N, L, L): filtering with a Gaussian along one axis, zeros beyond the border, as a matrix."""
    position_L = torch.arange(length, device=sigma_N.device, dtype=sigma_N.dtype)
    distance_LL = position_L[:, None] - position_L
    return torch.exp(-0.5 * (distance_LL / sigma_N[:, None, None]).square()) / sigma_N[:, None, None]


def standard_normal(u: Tensor) -> Tensor:
    """Uniform to standard normal numbers by the inverse distribution function; u = 0 and u = 1 stay finite."""
    edge = 1 - torch.finfo(u.dtype).eps
    return math.sqrt(2) * torch.erfinv((2 * u - 1).clamp(-edge, edge))
