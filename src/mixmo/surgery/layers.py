"""What stands in for a backbone's first and last layers: M encoders with the mixing block, M heads."""

import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mixmo.mixing.block import mixing_block
from mixmo.models.network import Ensemble
from mixmo.utils.errors import UserError

STOP = torch.empty(1)  # do not encode: hand back what would be encoded


class Reached(Exception):  # noqa: N818
    """The backbone came as far as its stem; carries what the stem would have encoded."""

    def __init__(self, image: Tensor) -> None:
        self.image = image


class Copies(nn.Module):
    """M layers in the place of one. What the backbone asks about the layer that was there, the first one answers."""

    def __init__(self, copies: Sequence[nn.Module]) -> None:
        super().__init__()
        self.copies = nn.ModuleList(copies)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "copies" or name.startswith("__"):  # not there yet; how to copy or pickle it is its own affair
                raise
            return getattr(self.copies[0], name)


class Encoders(Copies):
    """M stems and the mixing block.

    A backbone's own forward hands its stem one image. The images of the other members and the mixing map are buffers
    that `torch.func.functional_call` replaces for one call: the backbone needs no change and nothing is kept.

    linear: in the stems' weights, which then share out one stem's; else each is a whole one, and they are averaged.
    layout: of the encoded features: NCHW, NHWC or NLC (tokens, row by row).
    """

    others: Tensor
    coefficients: Tensor

    def __init__(self, copies: Sequence[nn.Module], layout: str, linear: bool = True) -> None:
        super().__init__(copies)
        self.layout = layout
        self.linear = linear
        device = next((p.device for p in self.copies.parameters()), None)
        # Empty between calls: then every member gets the image that comes along the backbone.
        self.register_buffer("others", torch.empty(0, device=device), persistent=False)  # (M - 1, N, C, H, W)
        self.register_buffer("coefficients", torch.empty(0, device=device), persistent=False)  # (M, N, 1, h, w)

    def forward(self, image: Tensor) -> Tensor:
        if self.others.shape == STOP.shape:
            raise Reached(image)
        if self.others.dim() > 1:
            if self.others.shape[1:] != image.shape:
                raise UserError(
                    f"the backbone turned images of {tuple(self.others.shape[3:])} pixels into "
                    f"{tuple(image.shape[2:])} before its stem; give images of a size that it takes as they are"
                )
            images = [image, *self.others.unbind(0)]
        else:
            if len(self.copies) > 1 and called_again():
                raise recomputed("its stem")
            images = [image] * len(self.copies)
        encoded = [copy(x) for copy, x in zip(self.copies, images, strict=True)]
        if self.coefficients.dim() > 1:
            maps = [to_maps(e, self.layout, self.coefficients) for e in encoded]
            features = from_maps(mixing_block(maps, self.coefficients), self.layout)
        else:
            features = mixing_block(encoded, None)
        return features if self.linear else features * (1 / len(self.copies))


class Heads(Copies):
    """M heads, their answers side by side along the classes.

    follows: it comes after other heads, as a normalisation of answers does, and each copy reads its member's answers.
    """

    def __init__(self, copies: Sequence[nn.Module], dim: int, follows: bool) -> None:
        super().__init__(copies)
        self.dim = dim
        self.follows = follows

    def forward(self, features: Tensor) -> Tensor:
        count = len(self.copies)
        given = features.chunk(count, dim=self.dim) if self.follows else [features] * count
        return torch.cat([copy(x) for copy, x in zip(self.copies, given, strict=True)], dim=self.dim)


def called_again() -> bool:
    """Whether the backward pass calls a stem by itself, and no network around it that would give it its images.

    torch.utils.checkpoint does. Switched on after `wrap`, it would differentiate another function than was computed.
    """
    if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:  # as checkpointing itself asks
        return False
    return not any(isinstance(frame.f_locals.get("self"), Ensemble) for frame, _ in traceback.walk_stack(None))


def recomputed(stem: str) -> UserError:
    """For a stem whose second call, in the backward pass, would no longer find the images of the other members."""
    return UserError(
        f"the model computes {stem} again in the backward pass (torch.utils.checkpoint); let activation "
        "checkpointing begin behind it, or switch it off"
    )


def to_maps(encoded: Tensor, layout: str, coefficients: Tensor) -> Tensor:
    """A view of the encoded features as maps (N, C, h, w), where the coefficients are (M, N, 1, h, w).

    Tokens do not say how many of them make a row: the mixing map's sides do.

    >>> to_maps(torch.empty(2, 6, 5), "NLC", torch.empty(2, 2, 1, 4, 6)).shape
    torch.Size([2, 5, 2, 3])
    """
    if layout == "NCHW":
        return encoded
    if layout == "NHWC":
        return encoded.movedim(-1, 1)
    length, (h, w) = encoded.shape[1], coefficients.shape[-2:]
    rows = 1 if h == w == 1 else round((length * h / w) ** 0.5)
    if length % rows:
        raise UserError(
            f"the stem's {length} tokens make no grid of the proportions of a mask of {h} x {w}; give the Mixer "
            "stride=net.stride, and images of a size that the model takes"
        )
    return encoded.transpose(1, 2).reshape(len(encoded), -1, rows, length // rows)


def from_maps(maps: Tensor, layout: str) -> Tensor:
    """What `to_maps` was given."""
    if layout == "NCHW":
        return maps
    if layout == "NHWC":
        return maps.movedim(1, -1)
    return maps.flatten(2).transpose(1, 2)
