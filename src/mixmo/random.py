"""One random stream, addressed rather than advanced.

The draws of a step depend on the seed and the number of the step alone. So a resumed run needs no generator state, and
the result does not depend on how many draws came before.
"""

import numpy as np
import torch


def seed_of(*numbers: int) -> int:
    """One seed of several numbers, so that neighbours among them draw nothing alike."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1


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
        """The stream's one generator, set to the start of this address. It is valid until the next call."""
        return self._generator.manual_seed(seed_of(self.seed, self.PURPOSES.index(purpose), index))
