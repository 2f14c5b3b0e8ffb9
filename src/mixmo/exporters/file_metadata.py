"""The metadata of an exported file, for whoever uses it without this package."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from mixmo._version import __version__
from mixmo.calibration.conformal import Conformal
from mixmo.calibration.selective import Selective
from mixmo.storage.plain_json import parse_json
from mixmo.utils.errors import UserError, first_line

INPUT = "images"
OUTPUTS = {
    "probs": "(batch, classes) probabilities of the ensemble: softmax of the members' mean logits / temperature",
    "members": "(batch, members, classes) probabilities of each member: softmax of its logits / temperature",
    "entropy": "(batch,) entropy of probs, in nats: how uncertain the prediction is",
    "mutual_information": "(batch,) entropy of the members' mean probabilities less their mean entropy, in nats: "
    "how far the members differ",
}


@dataclass(frozen=True)
class Metadata:
    """The metadata of an exported file: its input, its outputs, what was done to the network."""

    classes: tuple[str, ...]  # names, in the order of the outputs; empty if not known
    size: tuple[int, int, int]  # (C, H, W) of an image
    mean: tuple[float, ...]  # to be subtracted from pixels in 0..1 by the caller; empty if not known
    std: tuple[float, ...]  # to be divided by
    normalises: bool  # whether the graph normalises; then `mean` is 0 and `std` 1
    temperature: float
    members: int
    folded: bool
    precision: str
    sets: Conformal | None = None  # the classes k with 1 - p_k <= quantile ("lac"), where p is at temperature 1
    abstain: Selective | None = None  # where max_k p_k <= threshold, of the same p
    resize: int | None = None  # shorter side of an image before its centre is cropped; None: that of `size`

    @property
    def colour(self) -> str:
        return {1: "grey", 3: "RGB"}.get(self.size[0], f"{self.size[0]} channels")

    @property
    def preprocessing(self) -> str:
        shape = f"float32 (batch, {', '.join(map(str, self.size))}), {self.colour}"
        if self.normalises:
            return f"{shape}: pixels / 255; the graph normalises them itself"
        if self.mean:
            return f"{shape}: (pixels / 255 - mean) / std, channel by channel"
        return f"{shape}: as in training, which this file does not know"

    def to_dict(self) -> dict[str, Any]:
        extra = {"layout": "NCHW", "colour": self.colour, "range": [0, 1], "preprocessing": self.preprocessing}
        return {**asdict(self), **extra, "input": INPUT, "outputs": OUTPUTS, "mixmo": __version__}

    def to_strings(self) -> dict[str, str]:
        """Return the same for ONNX, whose metadata are strings: text as it is, all else as JSON."""
        return {key: v if isinstance(v, str) else json.dumps(v) for key, v in self.to_dict().items()}

    @classmethod
    def from_strings(cls, strings: Mapping[str, str]) -> "Metadata":
        """Restore the metadata from the output of `to_strings`; raise a UserError if a part is missing."""
        try:
            saved = {field.name: strings[field.name] for field in fields(cls) if field.name in strings}
            known: dict[str, Any] = {
                name: text if name == "precision" else parse_json(text) for name, text in saved.items()
            }
            for name in ("classes", "size", "mean", "std"):
                known[name] = tuple(known[name])
            for name, kind in (("sets", Conformal), ("abstain", Selective)):
                if known.get(name) is not None:
                    known[name] = kind(**known[name])
            return cls(**known)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"the file has no mixmo metadata ({first_line(error)}); write it with `mixmo export`"
            ) from error


def check_statistics(
    mean: Sequence[float] | None, std: Sequence[float] | None, channels: int, normalise: bool
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return both with one number per channel, or () for both."""
    if mean is None and std is None and not normalise:
        return (), ()
    means, stds = (tuple(map(float, values)) if isinstance(values, Iterable) else () for values in (mean, std))
    if not len(means) == len(stds) == channels:
        raise UserError(f"mean = {mean}, std = {std}; give both, one number for each of the {channels} channels")
    return means, stds
