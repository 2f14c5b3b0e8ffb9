"""Pixel augmentations that mix a sample x_i with a partner x_k and soften its target (paper, "Implementation details").

The target becomes lambda' y_i + (1 - lambda') y_k. Under MixMo only part of the pixels is `visible` (the member's own
mask, 1_M), so with the pixel mask 1_m

    lambda' = sum(1_m * 1_M) / sum(1_M),

and where lambda' < 1/2 the roles of x_i and x_k are swapped, so that the repeated x_i stays predominant (`keep_main`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mixmo.mixing.masks import cut
from mixmo.utils.registry import Registry


class Mixed(NamedTuple):
    """Mixed pixels and the share lambda' of the sample's own target in them."""

    images: Tensor  # (N, C, H, W)
    lam: Tensor  # (N,)


Apply = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, bool], Mixed]


@dataclass(frozen=True)
class Augmentation:
    """One kind of pixel augmentation: a pure function of the numbers drawn for each sample."""

    apply: Apply  # (images, partner, lam, u, visible, keep_main) -> Mixed, for every sample
    uniforms: int  # uniform numbers per sample, one of them for whether it is augmented
    needs_partner: bool = True  # whether it uses the partner images

    def __call__(
        self,
        images_NCHW: Tensor,
        partner_NCHW: Tensor,
        lam_N: Tensor,
        u_NP: Tensor,
        visible_Nhw: Tensor,
        *,
        prob: float = 0.5,
        keep_main: bool = False,
    ) -> Mixed:
        """Augment each sample with probability `prob`; elsewhere the image stays and lambda' = 1.

        lam_N is drawn by the caller, Beta(1, 1) in the paper. visible_Nhw is the weight of this member at each position
        of its features, at H x W or coarser; ones (N, 1, 1) for a single network. `keep_main` is for MixMo: the
        authors' single networks do not swap.
        """
        mixed = self.apply(images_NCHW, partner_NCHW, lam_N, u_NP[:, 1:], visible_Nhw, keep_main)
        chosen_N = u_NP[:, 0] < prob
        images_NCHW = torch.where(chosen_N[:, None, None, None], mixed.images, images_NCHW)
        return Mixed(images_NCHW, torch.where(chosen_N, mixed.lam, 1.0))


AUGMENTATIONS: Registry[Augmentation] = Registry("augmentation")


def _augmentation(name: str, uniforms: int, needs_partner: bool = True) -> Callable[[Apply], Apply]:
    """Decorator: register the `apply` below, which uses `uniforms` numbers of its own, under `name`."""

    def put(apply: Apply) -> Apply:
        AUGMENTATIONS.add(name)(Augmentation(apply, uniforms + 1, needs_partner))
        return apply

    return put


@_augmentation("mixup", uniforms=0)
def mixup(x_NCHW: Tensor, k_NCHW: Tensor, lam_N: Tensor, u_NP: Tensor, visible_Nhw: Tensor, keep_main: bool) -> Mixed:
    """Mixup: lambda x_i + (1 - lambda) x_k, the same everywhere."""
    return blend(x_NCHW, k_NCHW, lam_N[:, None, None], visible_Nhw, keep_main)


@_augmentation("cutmix", uniforms=2)
def cutmix(x_NCHW: Tensor, k_NCHW: Tensor, lam_N: Tensor, u_N2: Tensor, visible_Nhw: Tensor, keep_main: bool) -> Mixed:
    """CutMix: x_i inside a box of about lambda of the area, x_k outside of it."""
    return blend(x_NCHW, k_NCHW, cut(lam_N, u_N2, *x_NCHW.shape[2:]), visible_Nhw, keep_main)


@_augmentation("resizemix", uniforms=3)
def resizemix(
    x_NCHW: Tensor, k_NCHW: Tensor, lam_N: Tensor, u_N3: Tensor, visible_Nhw: Tensor, keep_main: bool
) -> Mixed:
    """ResizeMix: the whole x_k, scaled down by tau ~ U(0.1, 0.8), pasted somewhere on x_i; lambda is not used.

    A patch of int(tau H) x int(tau W) pixels, bilinear. After a swap, x_i is the patch and x_k the background.
    """
    H, W = x_NCHW.shape[2:]
    tau_N = 0.1 + 0.7 * u_N3[:, 0]
    row_NH, column_NW = _patch(tau_N, u_N3[:, 1], H), _patch(tau_N, u_N3[:, 2], W)
    grid_NHW2 = torch.stack((column_NW[:, None, :].expand(-1, H, -1), row_NH[:, :, None].expand(-1, -1, W)), dim=-1)
    patch_NHW = (grid_NHW2.abs() <= 1).all(dim=-1).to(x_NCHW.dtype)
    lam_N, swap_N111 = _share(1 - patch_NHW, visible_Nhw, keep_main)
    back_NCHW = torch.where(swap_N111, k_NCHW, x_NCHW)
    front_NCHW = torch.where(swap_N111, x_NCHW, k_NCHW)
    front_NCHW = F.grid_sample(front_NCHW, grid_NHW2.to(x_NCHW.dtype), padding_mode="border", align_corners=False)
    return Mixed(torch.lerp(back_NCHW, front_NCHW, patch_NHW[:, None]), lam_N)


@_augmentation("cutout", uniforms=2, needs_partner=False)
def cutout(x_NCHW: Tensor, k_NCHW: Tensor, lam_N: Tensor, u_N2: Tensor, visible_Nhw: Tensor, keep_main: bool) -> Mixed:
    """Cutout: zeros in a box of half the height and width, clipped at the border; the target stays."""
    quarter_N = torch.full_like(lam_N, 0.25)
    box_NHW = cut(quarter_N, u_N2, *x_NCHW.shape[2:])
    return Mixed(x_NCHW * (1 - box_NHW)[:, None].to(x_NCHW.dtype), torch.ones_like(lam_N))


def blend(x_NCHW: Tensor, k_NCHW: Tensor, mask_NHW: Tensor, visible_Nhw: Tensor, keep_main: bool) -> Mixed:
    """1_m x_i + (1 - 1_m) x_k with lambda' from what is visible; the mask is (N, H, W), or (N, 1, 1) if constant."""
    lam_N, swap_N111 = _share(mask_NHW, visible_Nhw, keep_main)
    mask_N1HW = mask_NHW[:, None].to(x_NCHW.dtype)
    mask_N1HW = torch.where(swap_N111, 1 - mask_N1HW, mask_N1HW)
    return Mixed(torch.lerp(k_NCHW, x_NCHW, mask_N1HW), lam_N)


def _share(mask_NHW: Tensor, visible_Nhw: Tensor, keep_main: bool) -> tuple[Tensor, Tensor]:
    """lambda' (N,) and whether x_i and x_k swap (N, 1, 1, 1). If nothing is visible, lambda' = 1 and nothing swaps."""
    mask_NHW, visible_NHW = _same_size(mask_NHW, visible_Nhw)
    seen_N = visible_NHW.sum(dim=(1, 2))
    share_N = (mask_NHW * visible_NHW).sum(dim=(1, 2)) / torch.where(seen_N > 0, seen_N, 1.0)
    lam_N = torch.where(seen_N > 0, share_N, 1.0)
    swap_N = lam_N < 0.5 if keep_main else torch.zeros_like(lam_N, dtype=torch.bool)
    return torch.where(swap_N, 1 - lam_N, lam_N), swap_N[:, None, None, None]


def _same_size(mask_NHW: Tensor, visible_Nhw: Tensor) -> tuple[Tensor, Tensor]:
    """Both at the finer resolution: a position of strided features covers several pixels."""
    H = max(mask_NHW.shape[1], visible_Nhw.shape[1])
    W = max(mask_NHW.shape[2], visible_Nhw.shape[2])

    def grow(x_Nhw: Tensor) -> Tensor:
        if x_Nhw.shape[1:] == (H, W):
            return x_Nhw.float()
        return F.interpolate(x_Nhw[:, None].float(), size=(H, W), mode="nearest")[:, 0]

    return grow(mask_NHW), grow(visible_Nhw)


def _patch(tau_N: Tensor, u_N: Tensor, length: int) -> Tensor:
    """Source of each position in the resized image, in grid_sample's units: within [-1, 1] inside of the patch."""
    side_N1 = (length * tau_N).floor().clamp(min=1)[:, None]
    start_N1 = ((length + 1 - side_N1) * u_N[:, None]).floor()
    position_L = torch.arange(length, device=u_N.device)
    return 2 * (position_L - start_N1 + 0.5) / side_N1 - 1
