"""Data sets and a ViT for measuring transfer: `mixmo train ... --plugin benchmarks/transfer.py`.

    cifar100-first          classes 0-49 of CIFAR-100, all 500 training images each
    cifar100-first-100      the same classes, the first 100 training images each
    cifar100-rest-100       classes 50-99, the first 100 training images each
    cifar100-rest-20        classes 50-99, the first 20 training images each
    tiny-imagenet-32        Tiny ImageNet, the first 125 training images of each class, resized to 32x32

The test images are those of the same classes. The model `vit` is a small vision transformer for images of 32x32:
patches of 4x4, `width` heads of 64 channels, `depth` blocks, mean pooling.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from mixmo.augment.basic import to_shape
from mixmo.data.catalog import DATASETS
from mixmo.data.cifar import cifar100
from mixmo.data.stream import Files
from mixmo.data.tiny_imagenet import tiny_imagenet
from mixmo.data.types import Dataset, Split
from mixmo.models import FAMILIES, Parts

PATCH, HEAD, POSITIONS = 4, 64, 64


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


@DATASETS.add("cifar100-first-100")
def cifar100_first_100(root: Path) -> Dataset:
    """CIFAR-100, classes 0-49, 100 training images each."""
    return some_classes(cifar100(root), "cifar100-first-100", 0, 50, 100)


@DATASETS.add("cifar100-rest-100")
def cifar100_rest_100(root: Path) -> Dataset:
    """CIFAR-100, classes 50-99, 100 training images each."""
    return some_classes(cifar100(root), "cifar100-rest-100", 50, 100, 100)


@DATASETS.add("cifar100-rest-20")
def cifar100_rest_20(root: Path) -> Dataset:
    """CIFAR-100, classes 50-99, 20 training images each."""
    return some_classes(cifar100(root), "cifar100-rest-20", 50, 100, 20)


@DATASETS.add("tiny-imagenet-32")
def tiny_imagenet_32(root: Path) -> Dataset:
    """Tiny ImageNet, resized to 32x32, 125 training images each."""
    dataset = tiny_imagenet(root)

    def small(split: Split) -> Split:
        assert isinstance(split.images, Files)
        whole = split.images.decoded()
        return Split(torch.cat([to_shape(part, 3, 32, 32) for part in whole.resident.split(1000)]), whole.labels)

    resized = dataset._replace(train=small(dataset.train), test=small(dataset.test))
    return some_classes(resized, "tiny-imagenet-32", 0, 200, 125)


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
