"""What the stages of a batch hand each other.

Shape legend, used as suffixes wherever shapes could be mistaken:
N samples, M members, K classes, C channels, H W pixels, h w positions of the encoded features.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, cat, device

from mixmo.errors import UserError

if TYPE_CHECKING:
    from mixmo.data.stream import Files


class Split(NamedTuple):
    """One part of a data set: resident on one device, or streamed to it."""

    images: "Tensor | Files"  # uint8 (D, H, W, C): a gathered batch is channels_last without a copy
    labels: Tensor  # int64 (D,)

    @property
    def resident(self) -> Tensor:
        """The images, where they must be in memory."""
        if isinstance(self.images, Tensor):
            return self.images
        raise UserError(
            f"{self.images.name} in {self.images.root} is streamed, and this needs all its images in memory; "
            "give a smaller @SIZE, or train on it"
        )

    def batches(self, count: int, part: bool = False) -> Iterator["Split"]:
        """In order, `count` at a time, on the device; files that cannot be read are left out.

        Files of which none can be read are refused, unless they are a `part`, beside others that may be readable.
        """
        if isinstance(self.images, Tensor):
            return map(Split, self.images.split(count), self.labels.split(count))
        return self.images.batches(count, part)


class Dataset(NamedTuple):
    """A data set by name: two splits, the names of its classes and the statistics used to normalise it."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]

    @property
    def size(self) -> tuple[int, int, int]:
        """(C, H, W) of its images; `Recipe.seen` is that of what a network sees of them."""
        height, width, channels = self.train.images.shape[1:]
        return channels, height, width


class Answers(NamedTuple):
    """What every head says of a split, or of those of its files that can be read."""

    logits: Tensor  # float32 (heads, N, K)
    labels: Tensor  # (N,)

    @classmethod
    def joined(cls, parts: Sequence["Answers"]) -> "Answers":
        """Those to the batches of a split as those to all of it."""
        return cls(cat([part.logits for part in parts], dim=1), cat([part.labels for part in parts]))


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
