"""The mixed batch.

Shape legend of the whole package, used as suffixes wherever shapes could be mistaken:
N samples, M members, K classes, C channels, H W pixels, h w positions of the encoded features.
"""

from typing import NamedTuple

from torch import Tensor, device


class FeatureMixing(NamedTuple):
    """How a single network mixes the features of its batch with each other (Manifold Mixup, PatchUp)."""

    partner: Tensor  # (N,) index of the sample that each one is mixed with
    shares: tuple[Tensor, ...]  # of the own features in the input of each early stage; broadcast to (N, C, h, w)


class Mix(NamedTuple):
    """A training batch: M inputs per sample, how they are mixed, the target and the weight of each head (section 3.1).

    Attributes:
        images: Inputs x_i, (M, N, C, H, W).
        coefficients: Share of each input at each position, (M, N, 1, h, w), or h = w = 1 for linear mixing. They sum to
            one over M.
        targets: Labels y_i: class indices (heads, N), or soft targets (heads, N, K) that sum to one.
        weights: Loss weights w_r(kappa_i), (heads, N). They sum to the number of heads.
        feature_mixing: Feature-space baselines of single networks only.
        visible: For unmixing: weight of each position in each head's pooling, (M, N, 1, h, w); None pools plainly.
    """

    images: Tensor
    coefficients: Tensor
    targets: Tensor
    weights: Tensor
    feature_mixing: FeatureMixing | None = None
    visible: Tensor | None = None

    def to(self, where: device | str, *, non_blocking: bool | None = None) -> "Mix":
        """Move all tensors to a device; by default copies to an accelerator do not block the host, as in Lightning."""
        ahead = device(where).type not in ("cpu", "mps") if non_blocking is None else non_blocking

        def moved(part: Tensor) -> Tensor:
            return part.to(where, non_blocking=ahead)

        mixing = self.feature_mixing
        if mixing is not None:
            mixing = FeatureMixing(moved(mixing.partner), tuple(map(moved, mixing.shares)))
        visible = None if self.visible is None else moved(self.visible)
        images, coefficients = moved(self.images), moved(self.coefficients)
        return Mix(images, coefficients, moved(self.targets), moved(self.weights), mixing, visible)
