"""Data sets and a ViT for measuring transfer: `mixmo train ... --plugin benchmarks/transfer.py`.

    cifar100-first          classes 0-49 of CIFAR-100, all 500 training images each
    cifar100-rest           classes 50-99, all 500 training images each
    cifar100-rest-100       classes 50-99, the first 100 training images each
    cifar100-rest-20        classes 50-99, the first 20 training images each
    cifar10-100             CIFAR-10, the first 100 training images of each class
    tiny-imagenet-32        Tiny ImageNet, the first 125 training and 10 test images of each class, resized to 32x32

The test images are those of the same classes. `python benchmarks/transfer.py NAME --data DATA` writes one of the last
two as sheets of 20 and 45 MB, DATA/NAME, which are read instead where they are.

The model `vit` is a small vision transformer for images of 32x32: patches of 4x4, `width` heads of 64 channels, `depth`
blocks, mean pooling.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from mixmo.augment.basic import to_shape
from mixmo.data.catalog import DATASETS
from mixmo.data.cifar import MEAN, STD, cifar10, cifar100
from mixmo.data.stream import Files
from mixmo.data.tiny_imagenet import tiny_imagenet
from mixmo.data.types import Dataset, Split
from mixmo.models import FAMILIES, Parts

PATCH, HEAD, POSITIONS = 4, 64, 64
EACH = {"cifar10-100": (100, 1_000), "tiny-imagenet-32": (125, 10)}  # training and test images per class
ROWS, COLUMNS, SIDE = 40, 50, 32  # of a sheet, in images, and the side of an image


def some_classes(dataset: Dataset, name: str, first: int, last: int, each: int | None = None) -> Dataset:
    """Return the data set with the classes `first` to `last` (exclusive) and `each` training images of them."""

    def choose(split: Split, count: int | None) -> Split:
        rows = torch.cat([(split.labels == label).nonzero()[:count, 0] for label in range(first, last)])
        return Split(split.resident[rows], split.labels[rows] - first)

    train, test = choose(dataset.train, each), choose(dataset.test, None)
    return dataset._replace(name=name, train=train, test=test, classes=dataset.classes[first:last])


@DATASETS.add("cifar100-first")
def cifar100_first(root: Path) -> Dataset:
    """CIFAR-100, classes 0-49, 500 training images each."""
    return some_classes(cifar100(root), "cifar100-first", 0, 50)


@DATASETS.add("cifar100-rest")
def cifar100_rest(root: Path) -> Dataset:
    """CIFAR-100, classes 50-99, 500 training images each."""
    return some_classes(cifar100(root), "cifar100-rest", 50, 100)


@DATASETS.add("cifar100-rest-100")
def cifar100_rest_100(root: Path) -> Dataset:
    """CIFAR-100, classes 50-99, 100 training images each."""
    return some_classes(cifar100(root), "cifar100-rest-100", 50, 100, 100)


@DATASETS.add("cifar100-rest-20")
def cifar100_rest_20(root: Path) -> Dataset:
    """CIFAR-100, classes 50-99, 20 training images each."""
    return some_classes(cifar100(root), "cifar100-rest-20", 50, 100, 20)


@DATASETS.add("cifar10-100")
def cifar10_100(root: Path) -> Dataset:
    """CIFAR-10, 100 training images each."""
    return read_sheets(root, "cifar10-100") or some_classes(cifar10(root), "cifar10-100", 0, 10, 100)


@DATASETS.add("tiny-imagenet-32")
def tiny_imagenet_32(root: Path) -> Dataset:
    """Tiny ImageNet, resized to 32x32, 125 training images each."""
    if dataset := read_sheets(root, "tiny-imagenet-32"):
        return dataset
    dataset = tiny_imagenet(root)

    def small(split: Split, each: int) -> Split:
        assert isinstance(split.images, Files)
        whole = split.images.decoded()
        rows = torch.cat([(whole.labels == label).nonzero()[:each, 0] for label in range(len(dataset.classes))])
        return Split(to_shape(whole.resident[rows], 3, SIDE, SIDE), whole.labels[rows])

    train_each, test_each = EACH["tiny-imagenet-32"]
    train, test = small(dataset.train, train_each), small(dataset.test, test_each)
    return dataset._replace(name="tiny-imagenet-32", train=train, test=test)


def write_sheets(dataset: Dataset, folder: Path) -> None:
    """Write the images, class after class, as lossless WebP files of 2,000, and the names of the classes."""
    folder.mkdir()
    (folder / "classes.txt").write_text("\n".join(dataset.classes))
    for name, split in (("train", dataset.train), ("test", dataset.test)):
        for i, part in enumerate(split.resident.split(ROWS * COLUMNS)):
            pixels = torch.zeros(ROWS * COLUMNS, SIDE, SIDE, 3, dtype=torch.uint8)
            pixels[: len(part)] = part
            sheet = pixels.unflatten(0, (ROWS, COLUMNS)).transpose(1, 2).reshape(ROWS * SIDE, COLUMNS * SIDE, 3)
            Image.fromarray(sheet.numpy()).save(folder / f"{name}-{i:02}.webp", lossless=True)


def read_sheets(root: Path, name: str) -> Dataset | None:
    """Return the data set of ROOT/NAME; None without this folder."""
    folder = root / name
    if not folder.is_dir():
        return None
    classes = tuple((folder / "classes.txt").read_text().splitlines())

    def read(part: str, each: int) -> Split:
        sheets = [torch.from_numpy(np.array(Image.open(path))) for path in sorted(folder.glob(f"{part}-*.webp"))]
        images = [x.view(ROWS, SIDE, COLUMNS, SIDE, 3).transpose(1, 2).flatten(0, 1) for x in sheets]
        labels = torch.arange(len(classes)).repeat_interleave(each)
        return Split(torch.cat(images)[: len(labels)].contiguous(), labels)

    train, test = EACH[name]
    mean, std = (MEAN, STD) if name == "cifar10-100" else ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    return Dataset(name, read("train", train), read("test", test), classes, mean, std)


class Core(nn.Module):
    """Transformer blocks on the encoded patches, a last normalisation, mean pooling."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        channels = HEAD * width
        self.position = nn.Parameter(0.02 * torch.randn(1, POSITIONS, channels))
        self.blocks = nn.ModuleList(Block(channels, width) for _ in range(depth))
        self.norm = nn.LayerNorm(channels)

    def forward(self, features: Tensor) -> Tensor:
        return self.maps(features).mean((-2, -1))

    def maps(self, features: Tensor) -> Tensor:
        """Return the last features as maps (N, F, h, w)."""
        x_NLF = features.flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x_NLF = block(x_NLF)
        return self.norm(x_NLF).transpose(1, 2).unflatten(2, features.shape[2:])  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and MLP, each behind a normalisation (pre-norm)."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.project = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))

    def forward(self, x_NLF: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x_NLF)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts.unbind(0))
        x_NLF = x_NLF + self.project(seen.transpose(1, 2).flatten(2))
        return x_NLF + self.mlp(self.norm2(x_NLF))  # type: ignore[no-any-return]


def vit(depth: int, width: int) -> Parts:
    """Small vision transformer for images of 32x32, `width` heads of 64 channels."""
    channels = HEAD * width
    return Parts(
        encoder=lambda colours: nn.Conv2d(colours, channels, PATCH, PATCH),
        encoded=channels,
        stride=PATCH,
        core=lambda _: Core(depth, width),
        head=lambda classes: nn.Linear(channels, classes),
    )


FAMILIES["vit"] = vit


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("name", choices=EACH)
    given = parser.parse_args()
    write_sheets(DATASETS[given.name](given.data), given.data / given.name)
