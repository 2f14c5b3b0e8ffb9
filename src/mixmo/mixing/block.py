"""The mixing block: M encoded inputs become the features that the core network reads (paper, section 3.2)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def mixing_block(encodings: Sequence[Tensor], coefficients: Tensor | None) -> Tensor:
    """M sum_i coefficient_i * c_i(x_i) (equation 2) of encodings (N, C, h, w); their sum without coefficients.

    The coefficients of Cut-MixMo are the mask 1_M and 1 - 1_M, those of Linear-MixMo kappa and 1 - kappa. The plain sum
    is MIMO's mixing, and everyone's at inference.
    """
    if coefficients is None:
        return torch.stack(list(encodings)).sum(0) if len(encodings) > 1 else encodings[0]
    # Ratios keep float32 under autocast: half precision would change the realised kappa.
    terms = zip(_resized(coefficients, encodings[0]).unbind(0), encodings, strict=True)
    mixed: Tensor = len(encodings) * sum(share * encoding for share, encoding in terms)  # type: ignore[assignment]
    return mixed.to(encodings[0].dtype)


def unmix(features: Tensor, visible: Tensor) -> Tensor:
    """Pool the last feature maps (N, F, h, w) for each head by the weights `visible` (M, N, 1, h', w'): (M, N, F).

        pooled_i = sum_hw v_i f / sum_hw v_i

    Without a mask (v constant) this is global average pooling. Unmixing is of Sun et al., "Towards efficient feature
    sharing in MIMO architectures" (CVPR workshops 2022); there the maps are multiplied and not normalised.
    """
    members, samples = visible.shape[:2]
    if visible.shape[-2:] == (1, 1):
        return features.mean((-2, -1)).expand(members, -1, -1)
    height, width = features.shape[-2:]
    weights = F.adaptive_avg_pool2d(visible.flatten(0, 1), (height, width)).view(members, samples, 1, -1)
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-6)
    return (features.flatten(2) * weights.to(features.dtype)).sum(-1)


def _resized(coefficients: Tensor, features: Tensor) -> Tensor:
    """Coefficients at the resolution of the features; nearest, so that masks stay binary."""
    size = features.shape[-2:]
    if coefficients.shape[-2:] in (size, (1, 1)):
        return coefficients
    return F.interpolate(coefficients.flatten(0, 1), size=size, mode="nearest").view(*coefficients.shape[:3], *size)
