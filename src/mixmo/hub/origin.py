"""How a network was trained, on which device, and how its scores were measured."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Origin:
    """How a network was trained and measured, for config.json and the model card.

    Attributes:
        recipe: Every field, as in the run's recipe.yaml.
        epoch: The epoch of the weights.
        device: Device of the training.
        torch: Version of PyTorch.
        minutes: Time of training, where known.
        parameters: Number of trained parameters.
        multiply_adds: Of one prediction.
        measured: How the scores were measured.
        members: Scores of each member.
        temperature: What the temperature was fitted on, where no images were held out.
        first: {"images": n, "top1": share} of the first n test images, a quick check.
    """

    recipe: dict[str, Any]
    epoch: str
    device: str
    torch: str
    minutes: float | None
    parameters: int
    multiply_adds: int
    measured: str
    members: tuple[dict[str, float], ...]
    temperature: str | None
    first: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and numbers, ready for JSON."""
        return asdict(self)
