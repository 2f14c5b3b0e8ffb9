"""What a training asks of its network: answers to whole splits, a part of them by each process, and their scores."""

from typing import NamedTuple

import torch
from torch import Tensor

from mixmo.data.types import Dataset, Split
from mixmo.engine.distributed import World
from mixmo.inference.predict import predict_split
from mixmo.metrics.logits import LabelledLogits
from mixmo.metrics.report import Report, evaluate
from mixmo.models import Ensemble
from mixmo.recipes.schema import Recipe
from mixmo.utils.errors import UserError


class DivergedError(UserError):
    """What the network has become is worth less than what was saved of it before."""


def diverged(what: str, recipe: Recipe) -> DivergedError:
    return DivergedError(
        f"{what}: training diverged, and nothing more was saved; take a lower lr (it is {recipe.lr}) or a longer "
        "warmup, and another --out"
    )


def check_answers(logits: Tensor, recipe: Recipe) -> None:
    """Refuses what the last step, or the running statistics, made of a network: the loss may not tell."""
    if not logits.isfinite().all():
        raise diverged("the network answers NaN or infinite values", recipe)


class Scorer(NamedTuple):
    net: Ensemble  # as it is trained, or its average
    recipe: Recipe
    dataset: Dataset
    held_out: Split | None  # of the training images
    world: World

    @property
    def splits(self) -> dict[str, Split]:
        """All that is scored, by name."""
        return {"test": self.dataset.test, **({"validation": self.held_out} if self.held_out else {})}

    @property
    def chooses(self) -> str:
        """The split by which the best epoch is chosen."""
        return "validation" if self.held_out else "test"

    def score(self, split: Split) -> Report:
        """In the precision of the training."""
        logits, labels = self.answers(split, self.recipe.precision)
        check_answers(logits, self.recipe)
        return evaluate(logits, labels)

    def answers(self, split: Split, precision: str = "fp32") -> LabelledLogits:
        """Every head's logits and the labels, of what could be read."""
        count, part = len(split.labels), self.world.size > 1
        if part:
            mine = torch.arange(count, device=split.labels.device)[self.world.part(count)]
            split = Split(split.images[mine], split.labels[mine])
        logits, labels = predict_split(self.net, self.dataset, split, precision, size=self.recipe.size, part=part)
        logits, labels = self.world.gather(logits, 1, count), self.world.gather(labels + 1, 0, count)
        read = labels > 0  # zeros fill up the part of a process that could not read all its files
        if not read.any():
            raise UserError(f"none of {count} images of {self.dataset.name} to score can be read; check the files")
        return LabelledLogits(logits[:, read], labels[read] - 1)

    def all_answers(self) -> dict[str, Tensor]:
        """What a run keeps: the answers to every split in float32, those to the test set by their plain names."""
        return {
            name if split == "test" else f"{split}_{name}": tensor
            for split, images in self.splits.items()
            for name, tensor in self.answers(images)._asdict().items()
        }
