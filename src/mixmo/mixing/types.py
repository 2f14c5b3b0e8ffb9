"""The mixed batch.

Shape legend of the whole package, used as suffixes wherever shapes could be mistaken:
N samples, M members, K classes, C channels, H W pixels, h w positions of the encoded features.
"""

from typing import NamedTuple

from torch import Tensor, device


class Hidden(NamedTuple):
    """How a single network mixes the features of its batch with each other (Manifold Mixup, PatchUp)."""

    partner: Tensor  # (N,) which sample each one is mixed with
    shares: tuple[Tensor, ...]  # of the own features in what enters each of the first stages; broadcast to (N, C, h, w)


class Mix(NamedTuple):
    """A training batch: M inputs a sample, how they are mixed, what each head should answer (paper, section 3.1)."""

    images: Tensor  # (M, N, C, H, W)
    coefficients: Tensor  # (M, N, 1, h, w), or h = w = 1 for plain linear mixing; they sum to one over M everywhere
    targets: Tensor  # (heads, N) class indices, or (heads, N, K) soft targets that sum to one
    weights: Tensor  # (heads, N): w_r(kappa), which sum to the number of heads over them
    hidden: Hidden | None = None  # for the feature-space baselines

    def to(self, where: device | str, *, non_blocking: bool | None = None) -> "Mix":
        """All of it on another device, for batches that a data loader mixed.

        By default nobody waits for what goes to an accelerator: so Lightning moves tensors, but not what has a `to`.
        """
        ahead = device(where).type not in ("cpu", "mps") if non_blocking is None else non_blocking

        def moved(part: Tensor) -> Tensor:
            return part.to(where, non_blocking=ahead)

        hidden = None
        if self.hidden is not None:
            hidden = Hidden(moved(self.hidden.partner), tuple(map(moved, self.hidden.shares)))
        return Mix(moved(self.images), moved(self.coefficients), moved(self.targets), moved(self.weights), hidden)
