"""What travels with a network's weights: the names of its classes, how its images are prepared, how good it is."""

from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Real
from typing import Any

from mixmo.calibration.posthoc import Calibration
from mixmo.utils.errors import UserError, check_number, check_whole

SMALLEST, LARGEST = 1e-6, 1e6  # of mean and std: beyond, float32 has no digits left for an image


@dataclass(frozen=True)
class About:
    """What a network knows of itself: `net.about`, set by `mixmo.load`, or by whoever trained it.

    `mixmo.predict`, `save_pretrained` and `export` use it, and need not be told again.
    """

    size: tuple[int, int, int]  # (C, H, W) of what the network sees
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    classes: tuple[str, ...] | None = None
    resize: int | None = None  # shorter side in pixels before the centre is cut out; None: that of `size`
    dataset: str | None = None  # on which the scores were measured
    scores: dict[str, float] = field(default_factory=dict)
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        for name in ("size", "mean", "std"):
            if not isinstance(getattr(self, name), tuple | list):
                raise UserError(f"{name} = {getattr(self, name)!r}; give a tuple of numbers")
        if len(self.size) != 3:
            raise UserError(f"size = {self.size}; give channels, height and width of what the network sees")
        for side in self.size:
            check_whole("a side of size", side)
        for value in (*self.mean, *self.std):
            check_number("a value of mean or std", value)
        if not all(SMALLEST < value < LARGEST for value in self.std):
            raise UserError(f"std = {self.std}; pixels are divided by it: give positive numbers")
        if not all(abs(value) < LARGEST for value in self.mean):
            raise UserError(f"mean = {self.mean}; give the mean of pixels that lie in 0..1")
        if not len(self.mean) == len(self.std) == self.size[0]:
            raise UserError(
                f"mean has {len(self.mean)} and std {len(self.std)} values for images of {self.size[0]} channels; "
                "give one a channel"
            )
        if self.classes is not None and not _texts(self.classes):
            raise UserError(f"classes = {str(self.classes)[:40]}; give a name for each class, as text")
        if self.resize is not None:
            check_whole("resize", self.resize, least=max(self.size[1:]))
        if not isinstance(self.dataset, str | None):
            raise UserError(f"dataset = {self.dataset!r}; give its name, or None")
        if not isinstance(self.scores, dict) or not all(isinstance(value, Real) for value in self.scores.values()):
            raise UserError(f"scores = {str(self.scores)[:40]}; give a number for each name, such as {{'top1': 0.8}}")

    def calibrated(self, calibration: Calibration) -> "About":
        """The same, with this calibration."""
        return replace(self, calibration=calibration)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "About":
        """What `to_dict` gave, also after a journey through JSON."""
        if not isinstance(given, dict):
            raise UserError(f"a {type(given).__name__} does not describe a network; give what to_dict gave")
        known = {name: given[name] for name in (f.name for f in fields(cls)) if name in given}
        for name in ("size", "mean", "std", "classes"):
            if isinstance(known.get(name), list):
                known[name] = tuple(known[name])
        saved = known.get("calibration")
        try:
            return cls(**known | {"calibration": None if saved is None else Calibration.from_dict(saved)})
        except TypeError as error:
            raise UserError(f"this does not describe a network ({error}); save it again") from error


def _texts(names: object) -> bool:
    return isinstance(names, tuple | list) and all(isinstance(name, str) for name in names)
