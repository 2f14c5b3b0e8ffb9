"""A 3x3 convolution and the tiles that its kernels cut their results into."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

Box = tuple[int, int, int]  # images, rows and columns of pixels


@dataclass(frozen=True)
class Shape:
    """A 3x3 convolution of N images: C channels of H x W pixels to K channels."""

    n: int
    c: int
    h: int
    w: int
    k: int
    stride: int
    padding: int

    @property
    def out_h(self) -> int:
        return (self.h + 2 * self.padding - 3) // self.stride + 1

    @property
    def out_w(self) -> int:
        return (self.w + 2 * self.padding - 3) // self.stride + 1

    @property
    def input(self) -> tuple[int, int, int, int]:
        return self.n, self.c, self.h, self.w

    @property
    def output(self) -> tuple[int, int, int, int]:
        return self.n, self.k, self.out_h, self.out_w

    @property
    def flops(self) -> float:
        """Of each direction; two per multiply-add."""
        return 2.0 * self.n * self.out_h * self.out_w * 9 * self.c * self.k

    @property
    def supported(self) -> bool:
        """Whether the kernels can compute it: tensor descriptors need rows of a multiple of 16 bytes."""
        sizes = self.c % 8 == 0 and self.k % 8 == 0 and min(self.out_h, self.out_w) > 0
        return sizes and self.stride in (1, 2) and self.padding in (0, 1)

    @property
    def supported_in_fp8(self) -> bool:
        return self.supported and self.c % 16 == 0 and self.k % 16 == 0

    @classmethod
    def of(cls, x: Tensor, weight: Tensor, stride: int, padding: int) -> "Shape":
        n, c, h, w = x.shape
        return cls(n, c, h, w, weight.shape[0], stride, padding)

    def __str__(self) -> str:
        strided = f" /{self.stride}" if self.stride > 1 else ""
        padded = "" if self.padding else ", not padded"
        return f"{self.n} x {self.c}->{self.k} {self.h}x{self.w}{strided}{padded}"


class Tile(NamedTuple):
    """What one program computes: `rows` x (`columns` + `more`) of the result, `depth` products at a time.

    Block sizes are powers of two: 128 + 32 columns fit 160 channels, 256 do not.

    With `images`, the pixels of a box are those of many images at one place. They are one dimension of a tensor in
    memory, and the tensor cores read such a matrix from shared memory; another box goes through registers. But
    neighbouring pixels are not read together.
    """

    rows: int
    columns: int
    more: int
    depth: int
    warps: int
    stages: int
    images: bool = False

    @property
    def width(self) -> int:
        return self.columns + self.more

    def __str__(self) -> str:
        more = f"+{self.more}" if self.more else ""
        images = " images" if self.images else ""
        return f"{self.rows}x{self.columns}{more}x{self.depth} w{self.warps} s{self.stages}{images}"


def named(tiles: tuple[Tile, ...]) -> dict[str, Tile]:
    """Return the tiles, each with both kinds of boxes, by their names."""
    both = [tile._replace(images=images) for tile in tiles for images in (False, True)]
    return {str(tile): tile for tile in both}


def blocks(size: int, block: int) -> int:
    return -(-size // block)


def rounded(size: int, block: int) -> int:
    return blocks(size, block) * block


def through_registers(box: Box) -> bool:
    """Whether Triton moves a box through registers: it reshapes in place only where all sides but one are 1."""
    return sum(side > 1 for side in box) > 1


def box(pixels: int, n: int, h: int, w: int) -> Box:
    """Return the box of this many pixels that covers N x H x W with the least waste; of several, the widest.

    >>> box(128, 256, 32, 32)
    (1, 4, 32)
    >>> box(64, 1, 7, 7)  # the whole image and one pixel more each way
    (1, 8, 8)
    """
    sides = [1 << i for i in range(pixels.bit_length())]
    boxes = [(pixels // (rows * columns), rows, columns) for rows in sides for columns in sides]
    return min(
        (one for one in boxes if one[0] > 0),
        key=lambda one: (rounded(n, one[0]) * rounded(h, one[1]) * rounded(w, one[2]), -one[2], -one[1]),
    )
