"""Random numbers by address: the draws of a step depend on the seed and its number only, not on earlier draws."""

import numpy as np
import torch
from torch import Generator, Tensor


def seed_of(*numbers: int) -> int:
    """Hash several numbers to one seed."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1


def draw_gamma(alpha: float, *shape: int, device: torch.device, generator: Generator | None = None) -> Tensor:
    """Draw standard gamma variables of shape parameter alpha; normalised, they are Dirichlet(alpha).

    None is 0, however small alpha is: torch returns at least the smallest normal number.
    """
    # float32 whatever torch's default: Lightning's "bf16-true" makes that bfloat16, too coarse for ratios.
    shapes = torch.full(shape, alpha, device=device, dtype=torch.float32)
    return torch._standard_gamma(shapes, generator)  # what torch.distributions uses, with our generator


class Stream:
    """Generators on one device, by purpose and index.

    >>> stream = Stream(seed=0, device=torch.device("cpu"))
    >>> a = torch.rand(2, generator=stream.at("step", 7))
    >>> b = torch.rand(2, generator=stream.at("step", 8))
    >>> torch.equal(a, torch.rand(2, generator=stream.at("step", 7))), torch.equal(a, b)
    (True, False)
    """

    PURPOSES = ("weights", "order", "step", "validation", "partner")

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed = seed
        self._generator = torch.Generator(device)

    def at(self, purpose: str, index: int = 0) -> torch.Generator:
        """Return the generator, seeded for this purpose and index; it is valid until the next call."""
        return self._generator.manual_seed(seed_of(self.seed, self.PURPOSES.index(purpose), index))
