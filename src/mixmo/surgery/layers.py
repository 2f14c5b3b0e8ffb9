"""What replaces a backbone's first and last layers: M encoders with the mixing block, M heads."""

import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mixmo.mixing.block import mixing_block
from mixmo.models.network import Ensemble
from mixmo.utils.errors import UserError

STOP = torch.empty(1)  # do not encode: raise Reached with what would be encoded


class Reached(Exception):  # noqa: N818
    """The backbone has reached its stem; carries what the stem would have encoded."""

    def __init__(self, image: Tensor) -> None:
        self.image = image


class Copies(nn.Module):
    """M layers in place of one. Attributes that the backbone reads from the replaced layer are those of the first."""

    def __init__(self, copies: Sequence[nn.Module]) -> None:
        super().__init__()
        self.copies = nn.ModuleList(copies)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "copies" or name.startswith("__"):  # not there yet; and how to copy or pickle is not delegated
                raise
            return getattr(self.copies[0], name)


class Encoders(Copies):
    """M stems and the mixing block.

    A backbone's own forward gives its stem one image. The images of the other members and the mixing map are buffers
    that `torch.func.functional_call` replaces for one call: the backbone is unchanged and nothing is kept.

    Args:
        copies: One stem per member.
        layout: Of the encoded features: NCHW, NHWC or NLC (tokens, row by row).
        linear: Whether the stems are linear in their weights. Then these sum to one stem's; else the outputs are
            averaged.
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
                sides = f"{tuple(self.others.shape[3:])} to {tuple(image.shape[2:])}"
                raise UserError(f"the backbone resizes images from {sides} before its stem; give them in its own size")
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
    """M heads, their outputs side by side along the classes.

    Args:
        copies: One head per member.
        dim: The dimension of the classes in the output.
        follows: Whether it comes after other heads, as a normalisation of logits does; then each copy reads its
            member's logits.
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
    """Return whether the backward pass calls a stem outside of any network that would give it its images.

    torch.utils.checkpoint does. Switched on after `wrap`, it would differentiate another function than was computed.
    """
    if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:  # as checkpointing itself tests
        return False
    return not any(isinstance(frame.f_locals.get("self"), Ensemble) for frame, _ in traceback.walk_stack(None))


def recomputed(stem: str) -> UserError:
    """Return the error for a stem whose second call, in the backward pass, would lack the other members' images."""
    hint = "let activation checkpointing begin behind it, or switch it off"
    return UserError(f"the model computes {stem} again in the backward pass (torch.utils.checkpoint); {hint}")


def to_maps(encoded: Tensor, layout: str, coefficients: Tensor) -> Tensor:
    """Return a view of the encoded features as maps (N, C, h, w), where the coefficients are (M, N, 1, h, w).

    How many tokens make a row follows from the sides of the mixing map.

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
        raise UserError(f"{length} tokens do not fit a mask of {h} x {w}; give the Mixer stride=net.stride")
    return encoded.transpose(1, 2).reshape(len(encoded), -1, rows, length // rows)


def from_maps(maps: Tensor, layout: str) -> Tensor:
    """Return the features that `to_maps` was given."""
    if layout == "NCHW":
        return maps
    if layout == "NHWC":
        return maps.movedim(1, -1)
    return maps.flatten(2).transpose(1, 2)
