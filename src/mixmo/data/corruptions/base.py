"""The registry of corruptions, and the random numbers they draw."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mixmo.utils.registry import Registry


class Draw:
    """Random numbers drawn on the generator's device, moved to that of the images: one on the CPU serves any device."""

    def __init__(self, generator: torch.Generator, device: torch.device) -> None:
        self.generator, self.device = generator, device

    def normal(self, shape: Sequence[int]) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.generator.device).to(self.device)

    def uniform(self, low: float, high: float, shape: Sequence[int]) -> Tensor:
        u = torch.rand(shape, generator=self.generator, device=self.generator.device)
        return (low + (high - low) * u).to(self.device)

    def integers(self, low: int, high: int, shape: Sequence[int]) -> Tensor:
        drawn = torch.randint(low, high, shape, generator=self.generator, device=self.generator.device)
        return drawn.to(self.device)

    def poisson(self, rate: Tensor) -> Tensor:
        return torch.poisson(rate.to(self.generator.device), generator=self.generator).to(self.device)


Corruption = Callable[[Tensor, int, Draw], Tensor]  # (images (N, H, W, 3) in [0, 1], severity 1 to 5) -> about [0, 1]

CORRUPTIONS: Registry[Corruption] = Registry("corruption")
