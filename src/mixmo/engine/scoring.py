"""Predict and score whole splits during a training, a part of the images by each process."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mixmo.data.types import Dataset, Split
from mixmo.engine.distributed import World
from mixmo.engine.divergence import check_outputs
from mixmo.inference.predict import predict_split
from mixmo.metrics.logits import LabelledLogits
from mixmo.metrics.report import Report, evaluate
from mixmo.models import Ensemble
from mixmo.recipes.schema import Recipe
from mixmo.utils.errors import UserError


class Scored(NamedTuple):
    """What was predicted for a split, and its scores."""

    logits: Tensor  # (heads, N, K)
    labels: Tensor  # (N,)
    report: Report


class Scorer(NamedTuple):
    """Predicts and scores the test images and those held out."""

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

    def score(self, split: Split) -> Scored:
        """Predict in the precision of the training, and score."""
        logits, labels = self.predict(split, self.recipe.precision)
        check_outputs(logits, self.recipe)
        return Scored(logits, labels, evaluate(logits, labels))

    def predict(self, split: Split, precision: str = "fp32") -> LabelledLogits:
        """Return every head's logits and the labels of the images that could be read."""
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

    def stored(self, known: Mapping[str, Scored] | None = None) -> dict[str, Tensor]:
        """Return what a run stores: float32 logits and labels of every split, `known` or predicted now."""
        tensors: dict[str, Tensor] = {}
        for name, split in self.splits.items():
            logits, labels = known[name][:2] if known else self.predict(split)
            prefix = "" if name == "test" else f"{name}_"
            tensors |= {f"{prefix}logits": logits, f"{prefix}labels": labels}
        return tensors
