"""Data sets and their splits."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from mixmo.utils.errors import UserError

if TYPE_CHECKING:
    from mixmo.data.stream import Files


class Split(NamedTuple):
    """One part of a data set: images and labels, resident on one device or streamed to it.

    Attributes:
        images: uint8 (D, H, W, C), so that a gathered batch is channels_last without a copy; or files to be streamed.
        labels: int64 (D,).
    """

    images: "Tensor | Files"
    labels: Tensor

    @property
    def resident(self) -> Tensor:
        """The images as a tensor; an error if they are streamed."""
        if isinstance(self.images, Tensor):
            return self.images
        files = f"{self.images.name} in {self.images.root}"
        raise UserError(f"{files} is streamed, but all images are needed in memory here; give a smaller @SIZE")

    def batches(self, count: int, part: bool = False) -> Iterator["Split"]:
        """Iterate over the split in order, in batches on the device; files that cannot be read are left out.

        If none can be read it is an error, except of a `part` of a test set.
        """
        if isinstance(self.images, Tensor):
            return map(Split, self.images.split(count), self.labels.split(count))
        return self.images.batches(count, part)


class Dataset(NamedTuple):
    """A data set: two splits, the names of its classes and its normalisation.

    Attributes:
        name: The name by which `mixmo.data.load` reads it.
        train: Training images and labels.
        test: Test images and labels.
        classes: Name of each class; a label is a position in it.
        mean: Mean per channel, of pixels in [0, 1].
        std: Standard deviation per channel.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def size(self) -> tuple[int, int, int]:
        """(C, H, W) of its images; a recipe with `size` crops them."""
        height, width, channels = self.train.images.shape[1:]
        return channels, height, width
