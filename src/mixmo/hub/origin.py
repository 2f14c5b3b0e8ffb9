"""Where a trained network comes from: how it was trained, on what device, and how its scores were measured."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Origin:
    """Saved in config.json and told by the model card."""

    recipe: dict[str, Any]  # every field, as in the run's recipe.yaml
    epoch: str  # whose weights these are
    device: str
    torch: str
    minutes: float | None  # of training, where it is known
    parameters: int
    multiply_adds: int  # for one image
    measured: str  # how the scores came about
    members: tuple[dict[str, float], ...]  # scores of each alone
    temperature: str | None  # what it was fitted on, where no images were held out
    first: dict[str, float]  # {"images": n, "top1": share} of the first n test images, to be checked in less time

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, ready for JSON."""
        return asdict(self)
