"""Learning rate by step (paper, appendix D)."""

import math

from mixmo.mixing.pairing import steps_per_epoch
from mixmo.recipes.schema import Recipe


class Schedule:
    """Steps, epochs, learning rate and share of training done. Steps and epochs count from 0."""

    def __init__(self, recipe: Recipe, samples: int) -> None:
        self.recipe = recipe
        self.steps_per_epoch = steps_per_epoch(samples, recipe.batch_size, recipe.repetition)
        self.steps = self.steps_per_epoch * recipe.epochs
        # A started batch counts here, as in the published runs: 782 b steps on CIFAR, not 781 b.
        self.warmup = math.ceil(samples / recipe.batch_size) * recipe.repetition * recipe.warmup

    def epoch(self, step: int) -> int:
        return step // self.steps_per_epoch

    def progress(self, step: int) -> float:
        """Return the share of epochs done at the end of this step's epoch: p is constant in an epoch, 0 in the last."""
        return (self.epoch(step) + 1) / self.recipe.epochs

    def lr(self, step: int) -> float:
        """Return the learning rate: linear warm-up, then decay after whole epochs, or a cosine to zero."""
        recipe = self.recipe
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if recipe.schedule == "cosine":
            done = max(0.0, (step + 1 - self.warmup) / max(1.0, self.steps - self.warmup))
            return recipe.rate * rise * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        passed = sum(self.epoch(step) >= round(share * recipe.epochs) for share in recipe.decay)
        factor: float = recipe.decay_rate**passed
        return recipe.rate * rise * factor
