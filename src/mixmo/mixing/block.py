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


def _resized(coefficients: Tensor, features: Tensor) -> Tensor:
    """Coefficients at the resolution of the features; nearest, so that masks stay binary."""
    size = features.shape[-2:]
    if coefficients.shape[-2:] in (size, (1, 1)):
        return coefficients
    return F.interpolate(coefficients.flatten(0, 1), size=size, mode="nearest").view(*coefficients.shape[:3], *size)
