"""What replaces layers of a backbone: M encoders with the mixing block, the pooling of unmixing, M heads."""

import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mixmo.mixing.block import mixing_block, unmix
from mixmo.models.network import Ensemble
from mixmo.surgery.overlapping import mixed_windows, overlapping_windows
from mixmo.surgery.patches import cut_patches, mixed_patches
from mixmo.utils.errors import UserError

STOP = torch.empty(1)  # do not encode: raise Reached


class Reached(Exception):  # noqa: N818
    """The backbone has reached its stem; its argument is what the stem would have encoded."""


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

    def reset(self) -> None:
        """Forget what a call has given this layer."""


class Encoders(Copies):
    """M stems and the mixing block.

    A backbone's own forward gives its stem one image. The images of the other members and the mixing map are buffers
    that `torch.func.functional_call` replaces for one call: the backbone is unchanged and nothing is kept.
    """

    others: Tensor  # (M - 1, N, C, H, W) within a call, else empty: then every member gets the backbone's image
    coefficients: Tensor  # (M, N, 1, h, w)
    by_kernel = True  # in training, if the Triton kernel can; else by M convolutions

    def __init__(self, copies: Sequence[nn.Module], layout: str, linear: bool = True) -> None:
        super().__init__(copies)
        self.layout = layout  # of the encoded features: NCHW, NHWC or NLC (tokens, row by row)
        self.linear = linear  # in their weights, which then sum to one stem's; else the outputs are averaged
        device = next((p.device for p in self.copies.parameters()), None)
        self.register_buffer("others", torch.empty(0, device=device), persistent=False)
        self.register_buffer("coefficients", torch.empty(0, device=device), persistent=False)

    def reset(self) -> None:
        self.others, self.coefficients = self.others.new_empty(0), self.coefficients.new_empty(0)

    def forward(self, image: Tensor) -> Tensor:
        if self.others.shape == STOP.shape:
            raise Reached(image)
        if self.others.dim() > 1:
            if self.others.shape[1:] != image.shape:
                raise UserError("the backbone pads or resizes images before its stem; give them in its own size")
            copies, images = list(self.copies), [image, *self.others.unbind(0)]
            if self.coefficients.dim() > 1:
                if cut_patches(copies, image, self.coefficients):
                    return mixed_patches(copies, images, self.coefficients)
                if self.by_kernel and overlapping_windows(copies, images, self.coefficients):
                    return mixed_windows(copies, images, self.coefficients)
            encoded = [copy(x) for copy, x in zip(copies, images, strict=True)]
        else:
            if len(self.copies) > 1 and called_again():
                raise recomputed("its stem")
            encoded = [copy(image) for copy in self.copies]
        if self.coefficients.dim() > 1:
            maps = [to_maps(e, self.layout, self.coefficients) for e in encoded]
            features = from_maps(mixing_block(maps, self.coefficients), self.layout)
        else:
            features = mixing_block(encoded, None)
        return features if self.linear else features * (1 / len(self.copies))


class Heads(Copies):
    """M heads, their outputs side by side along the classes.

    For unmixing, the features of the M heads are stacked along the batch, as `Pooling` makes them.
    """

    visible: Tensor | None  # within a call that unmixes, else None

    def __init__(self, copies: Sequence[nn.Module], dim: int, follows: bool) -> None:
        super().__init__(copies)
        self.dim = dim  # of the classes in the output
        self.follows = follows  # other heads, as a normalisation of logits does: each copy reads its member's logits
        self.register_buffer("visible", None, persistent=False)

    def reset(self) -> None:
        self.visible = None

    def forward(self, features: Tensor) -> Tensor:
        count = len(self.copies)
        if self.follows:
            given = features.chunk(count, dim=self.dim)
        else:
            given = (features,) * count if self.visible is None else features.chunk(count)
        return torch.cat([copy(x) for copy, x in zip(self.copies, given, strict=True)], dim=self.dim)


class Pooling(Copies):
    """A backbone's global average pooling; for unmixing, one pooling for each head, stacked along the batch (M N)."""

    visible: Tensor | None  # (M, N, 1, h, w) within a call that unmixes, else None: then it is the backbone's own

    def __init__(self, pool: nn.Module, layout: str, flat: bool) -> None:
        super().__init__([pool])
        self.layout = layout  # of the feature maps: NCHW or NHWC
        self.flat = flat  # the output is (N, F), without sides of one
        self.register_buffer("visible", None, persistent=False)

    def reset(self) -> None:
        self.visible = None

    def forward(self, features: Tensor) -> Tensor:
        if self.visible is None:
            return self.copies[0](features)  # type: ignore[no-any-return]
        maps = features if self.layout == "NCHW" else features.movedim(-1, 1)
        pooled = unmix(maps, self.visible).flatten(0, 1)
        return pooled if self.flat else from_maps(pooled[..., None, None], self.layout)


def called_again() -> bool:
    """Return whether torch.utils.checkpoint calls a stem in the backward pass, without the other members' images."""
    if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:  # as checkpointing itself tests
        return False
    return not any(isinstance(frame.f_locals.get("self"), Ensemble) for frame, _ in traceback.walk_stack(None))


def recomputed(stem: str) -> UserError:
    problem = f"the model computes {stem} again in the backward pass (torch.utils.checkpoint)"
    return UserError(f"{problem}; let activation checkpointing begin behind it, or switch it off")


def to_maps(encoded: Tensor, layout: str, coefficients: Tensor) -> Tensor:
    """Return the features as maps (N, C, h, w); the sides of the coefficients tell how many tokens make a row.

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
