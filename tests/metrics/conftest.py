"""Logits to score: right often enough that every count is positive, wrong often enough too."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

Draw = Callable[..., tuple[Tensor, Tensor]]


@pytest.fixture
def draw() -> Draw:
    """(members, samples, classes, seed) -> logits (M, N, K) whose members err together at times, and labels (N,)."""

    def draw(members: int, samples: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(classes, (samples,), generator=generator)
        shared = torch.randn(samples, classes, generator=generator, dtype=torch.float64)
        own = torch.randn(members, samples, classes, generator=generator, dtype=torch.float64)
        signal = 2 * torch.nn.functional.one_hot(labels, classes)
        return 1.5 * (shared + own + signal), labels

    return draw
