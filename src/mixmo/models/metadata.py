"""Metadata that is saved with a network's weights: classes, preparation of images, scores, calibration."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any

from mixmo.calibration.posthoc import Calibration
from mixmo.utils.errors import UserError, first_line, quoted

LARGEST = 4096  # pixels per side of an image


@dataclass(frozen=True)
class About:
    """Metadata of a network: `net.about`, set by `mixmo.load`, or by whoever trained it.

    `mixmo.predict`, `save_pretrained` and `export` use it.

    Args:
        size: (C, H, W) of the network's input.
        mean: Mean per channel, of pixels in [0, 1].
        std: Standard deviation per channel.
        classes: Name of each class.
        resize: Shorter side in pixels before the centre crop; None: that of `size`.
        dataset: Data set of the scores.
        scores: Scores by name, such as {"top1": 0.8}.
        calibration: Post-hoc calibration.

    Raises:
        UserError: If these do not fit each other.
    """

    size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] | None = None
    resize: int | None = None
    dataset: str | None = None
    scores: dict[str, float] = field(default_factory=dict)
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        sides = isinstance(self.size, Sequence) and len(self.size) == 3 and all(map(_is_side, self.size))
        finite = all(map(_is_finite, (*self.mean, *self.std)))
        if not (sides and finite and len(self.mean) == len(self.std) == self.size[0] and min(self.std) > 0):
            given = f"size = {quoted(self.size)}, mean = {quoted(self.mean)}, std = {quoted(self.std)}"
            raise UserError(
                f"{given}; give (channels, height, width), each at most {LARGEST:,}, and a mean and a positive std per "
                "channel"
            )
        check_names(self.classes)
        if self.resize is not None and (not _is_side(self.resize) or self.resize < max(self.size[1:])):
            least = f"at least the size of the network's input, {self.size[1:]}"
            raise UserError(f"resize = {quoted(self.resize)}; give {least}, and at most {LARGEST:,}")

    def calibrated(self, calibration: Calibration) -> "About":
        """Return the same metadata with this calibration."""
        return replace(self, calibration=calibration)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and numbers, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "About":
        """Restore what `to_dict` returned, also after a round trip through JSON; unknown keys are ignored."""
        try:
            known = {name: saved[name] for name in (f.name for f in fields(cls)) if name in saved}
            for name in ("size", "mean", "std", "classes"):
                if isinstance(known.get(name), list):
                    known[name] = tuple(known[name])
            if known.get("calibration") is not None:
                known["calibration"] = Calibration.from_dict(known["calibration"])
            return cls(**known)
        except TypeError as error:
            raise UserError(
                f"this is not the metadata of a network ({first_line(error)}); save the network again"
            ) from error


def _is_side(value: object) -> bool:
    return isinstance(value, Integral) and 0 < int(value) <= LARGEST


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def check_names(classes: Sequence[str] | None) -> None:
    """Raise a UserError unless the names of classes are texts, each another."""
    if classes is None:
        return
    texts = isinstance(classes, Sequence) and not isinstance(classes, str) and all(isinstance(n, str) for n in classes)
    if not texts:
        raise UserError(f"classes = {quoted(classes)}; give the name of each class, as text")
    if len(set(classes)) < len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise UserError(f"classes have the name {quoted(twice)} twice; give each class another name")
