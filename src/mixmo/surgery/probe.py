"""Run a classifier on two random images to learn which images it takes and what it outputs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mixmo.models.network import Ensemble, Network, channels
from mixmo.surgery.wrapped import logits_of
from mixmo.utils.errors import UserError
from mixmo.utils.eval_mode import evaluating
from mixmo.utils.text import shortened

Size = tuple[int, int, int]  # C, H, W
CIFAR = 32
LARGEST = 65_535  # pixels of a side
SIDES = (64, 32, 224, 299, 28, 128, 256, 16, 8)  # tried for a model that declares none


class Trial(NamedTuple):
    """Images that a model takes, and its logits for them."""

    images: Tensor  # (2, C, H, W): one would be lost to a model that squeezes
    logits: Tensor  # (2, K)

    @property
    def size(self) -> Size:
        return tuple(self.images.shape[1:])  # type: ignore[return-value]


@contextmanager
def frozen(*models: nn.Module) -> Iterator[None]:
    """Put models in eval mode without parameter gradients; restore every flag at the end."""
    wanted = [(parameter, parameter.requires_grad) for model in models for parameter in model.parameters()]
    with evaluating(*models):
        try:
            for parameter, _ in wanted:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter, flag in wanted:
                parameter.requires_grad_(flag)


def run_trial(model: nn.Module, size: Size | None) -> Trial:
    """Run the model on images of the given size, else of one that it declares, else of a common one."""
    problems: list[str] = []
    common = ((channels, side, side) for side, channels in product(SIDES, _channels(model)))
    for shape in [size] if size else list(dict.fromkeys(chain(_declared(model), common))):
        images = random_images(model, shape)
        try:
            with torch.no_grad():
                output = model(images.clone())
        except Exception as error:  # whatever a model raises for a size that it does not take
            problems.append(f"{shape}: {str(error) or type(error).__name__}")
            continue
        logits = logits_of(output)
        if logits.dim() != 2 or len(logits) != 2 or logits.shape[1] < 2 or not logits.isfinite().all():
            raise UserError(f"the model outputs {tuple(logits.shape)} or NaN; a classifier outputs logits (2, classes)")
        return Trial(images, logits)
    problem = shortened(" ".join(problems[0].split()))
    if size:
        raise UserError(f"the model takes no images of {problem}; give images of another size")
    raise UserError(f"the model takes no image of the sizes tried; give size=(C, H, W) (for {problem})")


def check_size(size: Size | None) -> None:
    sides = tuple(size) if isinstance(size, Sequence) else ()
    if size is not None and (
        len(sides) != 3 or any(type(side) is not int or not 1 <= side <= LARGEST for side in sides)
    ):
        raise UserError(f"size = {size}; give channels, height and width of an image, such as (3, 224, 224)")


def input_size(net: Ensemble) -> Size:
    """Return the size of images that a network declares; a `Network` takes any, and gets CIFAR's."""
    known: Size | None = getattr(net, "size", None)
    if known is not None:
        return known
    if isinstance(net, Network) and (reads := channels(net)):
        return (reads, CIFAR, CIFAR)
    raise UserError("the size of the images is not known; give size=(channels, height, width)")


def random_images(model: nn.Module, size: Size) -> Tensor:
    """Return two random images, on the model's device and in its precision; the same at each call."""
    generator = torch.Generator().manual_seed(0)
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(()))
    return torch.randn(2, *size, generator=generator, device="cpu").to(like.device, like.dtype)


def close(a: Tensor, b: Tensor) -> bool:
    """Return whether two outputs are equal up to what a deep network makes of rounding."""
    return relative(a, b) <= max(1e-3, 8 * torch.finfo(b.dtype).eps)


def relative(a: Tensor, b: Tensor) -> float:
    """Return the largest difference relative to the largest value."""
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-3)).item()


def _declared(model: nn.Module) -> Iterator[Size]:
    """Sizes that models of timm, torchvision, transformers and pytorchcv declare."""
    for module in [model, *model.children()]:
        for name in ("img_size", "image_size", "in_size", "input_size"):
            side = getattr(module, name, None) or getattr(getattr(module, "config", None), name, None)
            yield from _sizes(model, side)
    cfg = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    yield from _sizes(model, cfg.get("input_size") if isinstance(cfg, dict) else None)


def _sizes(model: nn.Module, side: Any) -> Iterator[Size]:
    if isinstance(side, int):
        side = (side, side)
    if isinstance(side, tuple | list) and len(side) in (2, 3) and all(isinstance(s, int) for s in side):
        yield from ((c, side[-2], side[-1]) for c in ([side[0]] if len(side) == 3 else _channels(model)))


def _channels(model: nn.Module) -> list[int]:
    """Those of the first convolution, then the usual ones."""
    first = [layer.in_channels for layer in model.modules() if isinstance(layer, nn.Conv2d)][:1]
    return list(dict.fromkeys([*first, 3, 1]))
