"""Any backbone, reading M images per pass."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mixmo.mixing.types import FeatureMixing
from mixmo.models.network import Ensemble
from mixmo.surgery.layers import STOP, Copies, Encoders, Heads, Reached
from mixmo.utils.errors import UserError

C = TypeVar("C", bound=Copies)


class Wrapped(Ensemble):
    """A backbone with M stems (`Encoders`) and M heads (`Heads`) in place of its own: what `mixmo.wrap` returns.

    `net(mix)` gives logits (M, N, K) of a `Mix`, `net(images)` those of the ensemble (N, K).

    Attributes:
        backbone: The copied model; its optimiser groups, hooks and checkpointing work as before.
        members: Images read per pass, M; 1 once folded.
        num_heads: Number of heads.
        classes: Number of classes K.
        stride: Image pixels per position of the mixed features, for `mixmo.Mixer(stride=...)`.
        size: (C, H, W) of an image that the backbone takes.
        stems: Names of the stems within the backbone.
        heads: Names of the heads.
        direct: For each stem, whether it reads the image itself or what the backbone computes from it.
        pool: Name of the global average pooling, once `mixmo.surgery.unmixing.enable_unmixing` found it.
        about: How images are prepared, class names and scores, where known.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        members: int,
        classes: int,
        stride: int,
        size: tuple[int, int, int],
        stems: Sequence[str],
        heads: Sequence[str],
        direct: Sequence[bool],
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.members = self.num_heads = members
        self.classes = classes
        self.stride = stride
        self.size = size
        self.stems = tuple(stems)
        self.heads = tuple(heads)
        self.direct = tuple(direct)
        self.pool: str | None = None

    def each(self, images_NCHW: Tensor) -> Tensor:
        """Return the logits of every head (heads, N, K), each image repeated M times: the backbone's own forward."""
        return self._by_head(self.backbone(images_NCHW), images_NCHW.shape[0])

    def read(
        self,
        images_MNCHW: Tensor,
        coefficients: Tensor | None = None,
        feature_mixing: FeatureMixing | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        """See `Ensemble.read`. The first image takes the backbone's own path to the stem, the others join it there."""
        if feature_mixing is not None:
            raise UserError("a wrapped backbone has no stages to mix features in; use a network of mixmo.create")
        self.check_count(images_MNCHW)
        first, *rest = images_MNCHW.unbind(0)
        if not rest:
            return self.each(first)  # its share is one
        given = {}
        for stem, direct in zip(self.stems, self.direct, strict=True):
            self.encoders_at(stem)
            others = rest if direct else [self.before_stem(stem, image) for image in rest]
            given[f"{stem}.others"] = torch.stack(others)
            if coefficients is not None:
                given[f"{stem}.coefficients"] = coefficients
        if visible is not None:
            if self.pool is None:
                raise UserError("the pooling to unmix is not known; call mixmo.surgery.unmixing.enable_unmixing first")
            given |= {f"{layer}.visible": visible for layer in (self.pool, *self.heads)}
        return self._by_head(functional_call(self.backbone, given, (first,), tie_weights=False), first.shape[0])

    def before_stem(self, stem: str, image_NCHW: Tensor) -> Tensor:
        """Return what the backbone computes from an image before its stem: scaling, padding, patches."""
        given = {f"{stem}.others": STOP}
        if self.training:  # running statistics on the way shall count the mixed batch, and only once
            given = {name: buffer.clone() for name, buffer in self.backbone.named_buffers()} | given
        try:
            functional_call(self.backbone, given, (image_NCHW,), tie_weights=False)
        except Reached as reached:
            return reached.args[0]  # type: ignore[no-any-return]
        raise UserError(f"the backbone does not call its stem '{stem}' by this name; name another by stem (--stem)")

    def encoders_at(self, stem: str) -> Encoders:
        """Return the M layers of a stem; raise if they were replaced: the other members' images would be lost."""
        return self._layers(stem, Encoders)

    def heads_at(self, head: str) -> Heads:
        return self._layers(head, Heads)

    def _layers(self, name: str, kind: type[C]) -> C:
        layer: nn.Module | None
        try:
            layer = self.backbone.get_submodule(name)
        except AttributeError:
            layer = None
        if not isinstance(layer, kind):
            now = f"was removed, or became a {type(layer).__name__}, after mixmo.wrap"
            raise UserError(f"'{name}' {now}; change the model first, or its classes by mixmo.convert")
        return layer

    def _by_head(self, output: Any, samples: int) -> Tensor:
        """Return logits (heads, N, K) from an output with the heads side by side along the classes."""
        logits = logits_of(output)
        if logits.numel() != samples * self.num_heads * self.classes:
            for head in self.heads:
                self.heads_at(head)
            expected = f"{self.num_heads} heads of {self.classes} classes"
            raise UserError(f"the backbone outputs {tuple(logits.shape)} instead of {expected}; change it before wrap")
        return logits.reshape(samples, self.num_heads, self.classes).transpose(0, 1)


def logits_of(output: Any) -> Tensor:
    """Return the logits in a classifier's output: a tensor, `.logits`, ["logits"], or the first of several."""
    if isinstance(output, Tensor):
        return output
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits  # type: ignore[no-any-return]
    if isinstance(output, dict) and isinstance(output.get("logits"), Tensor):
        return output["logits"]  # type: ignore[no-any-return]
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    keys = f" with {', '.join(map(str, output))}" if isinstance(output, dict) else ""
    raise UserError(f"the model returns a {type(output).__name__}{keys}; a classifier returns logits (N, K)")
