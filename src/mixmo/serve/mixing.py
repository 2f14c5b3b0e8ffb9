"""Two images in one forward pass: how they are mixed, and what each head predicts."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mixmo.augment.basic import normalise
from mixmo.inference.naming import names_or_numbers
from mixmo.mixing.masks import MASKS
from mixmo.mixing.mixer import grid
from mixmo.models.metadata import About
from mixmo.models.network import Ensemble
from mixmo.serve.images import to_png
from mixmo.serve.rows import named, tops

PLACED = {"cut": ("y", "x"), "horizontal": ("x",), "vertical": ("y",)}  # masks whose uniform numbers are a position
LINEAR = "linear"
IMAGES = ("A", "B")


@dataclass(frozen=True)
class Mixing:
    """How two images A and B are mixed.

    Args:
        mask: A name of `mixmo list masks`, or "linear"; with ratio 0.5 that is multiplexed inference.
        ratio: Share of A, kappa; masks realise it only roughly.
        x: Position of the region from left to right, 0 to 1, of the masks in `PLACED`.
        y: The same from top to bottom.
        seed: Of the random numbers of the other masks.
    """

    mask: str = "cut"
    ratio: float = 0.5
    x: float = 0.5
    y: float = 0.5
    seed: int = 0

    def share(self, h: int, w: int) -> Tensor:
        """Return the share of A at each position, (h, w) or (1, 1)."""
        if self.mask == LINEAR:
            return torch.full((1, 1), self.ratio)
        mask = MASKS[self.mask]
        generator = torch.Generator().manual_seed(self.seed)
        u_1P = torch.rand(1, mask.uniforms(h, w), generator=generator)
        if self.mask in PLACED:
            u_1P = torch.tensor([[getattr(self, axis) for axis in PLACED[self.mask]]])
        return mask.draw(torch.tensor([self.ratio]), u_1P, h, w)[0]


def mixable_masks(net: Ensemble, about: About) -> list[str]:
    """List the masks that fit the resolution of the network's features, and linear mixing."""
    smallest = min(grid(*about.size[1:], net.stride))
    return [*(name for name in MASKS if MASKS[name].minimum <= smallest), LINEAR]


@torch.no_grad()
def mix(net: Ensemble, about: About, images_2HWC: Tensor, mixing: Mixing, top: int) -> dict[str, Any]:
    """Mix two prepared images and return the picture of it and what each head predicts.

    Member m reads A if m is even, else B. Members of the same image share its coefficients equally.
    """
    member_M = torch.arange(net.members) % 2
    share_hw = mixing.share(*grid(*about.size[1:], net.stride))
    share_2hw = torch.stack([share_hw, 1 - share_hw])
    coefficients = (share_2hw[member_M] / member_M.bincount()[member_M][:, None, None])[:, None, None]
    device = next(net.parameters()).device
    x_2CHW = normalise(images_2HWC, about.mean, about.std).to(device)
    logits_M1K = net.read(x_2CHW[member_M.to(device)][:, None], coefficients.to(device))
    probs_MK = logits_M1K.float().softmax(-1)[:, 0].cpu()
    best = tops(probs_MK, names_or_numbers(about.classes, probs_MK.shape[1]), top)
    ratio = share_hw.mean().item()
    heads = [
        {"reads": IMAGES[image], "share": (ratio, 1 - ratio)[image], "classes": named(classes)}
        for image, classes in zip(member_M.tolist(), best, strict=True)
    ]
    return {"ratio": ratio, "picture": to_png(picture(images_2HWC, share_2hw)), "heads": heads}


def picture(images_2HWC: Tensor, share_2hw: Tensor) -> Tensor:
    """Return the mixed image on pixels; the network mixes the encodings of the same places."""
    share_2HW1 = F.interpolate(share_2hw[:, None], images_2HWC.shape[1:3], mode="nearest")[:, 0, :, :, None]
    return (share_2HW1 * images_2HWC).sum(0).round().to(torch.uint8)
