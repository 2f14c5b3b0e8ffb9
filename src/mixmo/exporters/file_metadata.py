"""What an exported file says of itself, for whoever finds it without the code that made it."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mixmo._version import __version__
from mixmo.calibration.conformal import Conformal
from mixmo.calibration.selective import Selective
from mixmo.utils.errors import UserError

INPUT = "images"
OUTPUTS = {
    "probs": "(batch, classes) probabilities of the ensemble: softmax of the members' mean logits / temperature",
    "members": "(batch, members, classes) probabilities of each member: softmax of its logits / temperature",
    "entropy": "(batch,) entropy of probs, in nats: how unsure the answer is",
    "mutual_information": "(batch,) entropy of the members' mean probabilities less their mean entropy, in nats: "
    "how far the members differ",
}


@dataclass(frozen=True)
class Metadata:
    """The metadata of a file: what to feed, what comes out, what was done to the network."""

    classes: tuple[str, ...]  # names, in the order of the outputs; empty where they were not given
    size: tuple[int, int, int]  # (C, H, W) of an image
    mean: tuple[float, ...]  # what the caller still has to subtract from pixels in 0..1; empty if not known
    std: tuple[float, ...]  # and divide by
    normalises: bool  # whether the graph itself subtracts a mean and divides; then `mean` is 0 and `std` 1
    temperature: float
    members: int
    folded: bool
    precision: str
    sets: Conformal | None = None  # the classes k with 1 - p_k <= quantile ("lac"), where p is at temperature 1
    abstain: Selective | None = None  # where max_k p_k <= threshold, of the same p

    @property
    def colour(self) -> str:
        return {1: "grey", 3: "RGB"}.get(self.size[0], f"{self.size[0]} channels")

    @property
    def preprocessing(self) -> str:
        """What to do with an image, in a sentence."""
        shape = f"float32 (batch, {', '.join(map(str, self.size))}), {self.colour}"
        if self.normalises:
            return f"{shape}: pixels / 255; the graph normalises them itself"
        if self.mean:
            return f"{shape}: (pixels / 255 - mean) / std, channel by channel"
        return f"{shape}: as in training, which this file does not know"

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        extra = {"layout": "NCHW", "colour": self.colour, "range": [0, 1], "preprocessing": self.preprocessing}
        return {**asdict(self), **extra, "input": INPUT, "outputs": OUTPUTS, "mixmo": __version__}

    def to_strings(self) -> dict[str, str]:
        """The same for ONNX, whose metadata are strings: text as it is, all else as JSON."""
        return {key: v if isinstance(v, str) else json.dumps(v) for key, v in self.to_dict().items()}


def check_statistics(
    mean: Sequence[float] | None, std: Sequence[float] | None, channels: int, normalise: bool
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, or neither."""
    if (mean is None) != (std is None) or (normalise and mean is None):
        raise UserError("give mean and std together, one number each a channel, of pixels in 0..1")
    if mean is None or std is None:
        return (), ()
    if not hasattr(mean, "__len__") or not hasattr(std, "__len__"):
        raise UserError(f"mean = {mean!r}, std = {std!r}; give a sequence of one number a channel each")
    if len(mean) != channels or len(std) != channels:
        raise UserError(
            f"mean has {len(mean)} and std {len(std)} numbers, but the images have {channels} channels; give one each"
        )
    if not all(map(math.isfinite, mean)) or not all(0 < s < math.inf for s in std):
        raise UserError(f"mean = {tuple(mean)}, std = {tuple(std)}; they must be finite, and std positive")
    return tuple(map(float, mean)), tuple(map(float, std))
