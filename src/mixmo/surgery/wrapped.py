"""Any backbone, reading M images at once."""

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
    """A backbone whose stems are `Encoders` and whose last layers are `Heads`, in the places they had. See `wrap`."""

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
        self.members = members
        self.answers = members
        self.classes = classes
        self.stride = stride
        self.size = size  # of an image (C, H, W) that the backbone takes
        self.stems = tuple(stems)  # names within the backbone
        self.heads = tuple(heads)
        self.direct = tuple(direct)  # whether a stem reads the image as it is, or what the backbone made of it

    def each(self, images_NCHW: Tensor) -> Tensor:
        """Every head's logits (heads, N, K) for one image given M times: the backbone's own forward."""
        return self._answers(self.backbone(images_NCHW), images_NCHW.shape[0])

    def read(
        self, images_MNCHW: Tensor, coefficients: Tensor | None = None, feature_mixing: FeatureMixing | None = None
    ) -> Tensor:
        """Every head's logits (heads, N, K) for M images a sample.

        The first image goes the backbone's own way to the stem, the others meet it there. Mixed by `coefficients` in
        training; the plain sum without them.
        """
        if feature_mixing is not None:
            raise UserError("a wrapped backbone has no stages to mix features in; take a network of mixmo.create")
        self.check_count(images_MNCHW)
        first, *rest = images_MNCHW.unbind(0)
        if not rest:
            return self.each(first)  # its share is one
        given = {}
        for stem, direct in zip(self.stems, self.direct, strict=True):
            self.encoders_at(stem)
            others = rest if direct else [self.before(stem, image) for image in rest]
            given[f"{stem}.others"] = torch.stack(others)
            if coefficients is not None:
                given[f"{stem}.coefficients"] = coefficients
        return self._answers(functional_call(self.backbone, given, (first,), tie_weights=False), first.shape[0])

    def before(self, stem: str, image_NCHW: Tensor) -> Tensor:
        """What the backbone makes of an image before its stem: scaling, padding, patches."""
        given = {f"{stem}.others": STOP}
        if self.training:  # running statistics on the way shall count the mixed batch, and only once
            given = {name: buffer.clone() for name, buffer in self.backbone.named_buffers()} | given
        try:
            functional_call(self.backbone, given, (image_NCHW,), tie_weights=False)
        except Reached as reached:
            return reached.image
        raise UserError(
            f"the backbone does not call its stem '{stem}' by this name (does it hold layers in a plain list?); name "
            "one that it does call by stem="
        )

    def encoders_at(self, stem: str) -> Encoders:
        """The layers of this stem. Refuses what was put there since: no images of other members would get through."""
        return self._layers(stem, Encoders)

    def heads_at(self, head: str) -> Heads:
        """The layers of this head."""
        return self._layers(head, Heads)

    def _layers(self, name: str, kind: type[C]) -> C:
        layer: nn.Module | None
        try:
            layer = self.backbone.get_submodule(name)
        except AttributeError:
            layer = None
        if not isinstance(layer, kind):
            now = "is no longer there" if layer is None else f"has become a {type(layer).__name__}"
            raise UserError(
                f"the model's '{name}' {now} since mixmo.wrap; change the model before it is wrapped, put what goes "
                "around a layer around the whole network, and let mixmo.convert give it other classes"
            )
        return layer

    def _answers(self, output: Any, samples: int) -> Tensor:
        """Logits (heads, N, K) of what the backbone returned, where the heads lie side by side along the classes."""
        logits = logits_of(output)
        if logits.numel() != samples * self.answers * self.classes:
            for head in self.heads:
                self.heads_at(head)
            raise UserError(
                f"the backbone answers {samples} images with {tuple(logits.shape)}, which is not {self.answers} heads "
                f"of {self.classes} classes each; was it changed after mixmo.wrap?"
            )
        return logits.reshape(samples, self.answers, self.classes).transpose(0, 1)


def logits_of(output: Any) -> Tensor:
    """The logits in what a classifier returns: a tensor, `.logits`, ["logits"], or the first of several."""
    if isinstance(output, Tensor):
        return output
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits  # type: ignore[no-any-return]
    if isinstance(output, dict) and isinstance(output.get("logits"), Tensor):
        return output["logits"]  # type: ignore[no-any-return]
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    keys = f" with {', '.join(map(str, output))}" if isinstance(output, dict) else ""
    raise UserError(
        f"the model returns a {type(output).__name__}{keys}; a classifier returns logits (N, K), by themselves "
        "or as 'logits'"
    )
