"""A data set: two splits, the names of its classes and how its images are normalised."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from mixmo.utils.errors import UserError

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
