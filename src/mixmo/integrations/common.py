"""A Mix in loops that have their own step counter or make their batches in worker processes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from mixmo.mixing.mixer import Mixer
from mixmo.mixing.types import Mix
from mixmo.models.network import Ensemble
from mixmo.surgery.unwrap import unwrap_ensemble
from mixmo.utils.errors import UserError
from mixmo.utils.rng import Stream


class StepMixer:
    """A Mixer whose draws depend on the seed and the number of the step alone.

    So every loop that counts its steps trains alike, and a resumed one draws what it would have drawn:
    `mix = step_mixer(images, labels, step, steps)`. Each of several processes gives its rank, and draws its own.
    """

    def __init__(self, mixer: Mixer, seed: int = 0) -> None:
        self.mixer = mixer
        self.seed = seed

    def __call__(
        self, images: Tensor, labels: Tensor, step: int, steps: float, *, rank: int = 0, processes: int = 1
    ) -> Mix:
        if not isinstance(images, Tensor):
            raise UserError(
                f"a batch holds a {type(images).__name__} for images; give pairs (images, labels) of tensors"
            )
        if not steps > 0:
            raise UserError(f"steps = {steps}; give how many there will be, math.inf where nobody knows")
        generator = Stream(self.seed, images.device).at("step", step * processes + rank)
        return self.mixer(images, labels, progress=min(1.0, step / steps), generator=generator)


class Collate:
    """A DataLoader's `collate_fn` that gives a Mix: `DataLoader(dataset, 64, collate_fn=Collate(mixer))`.

    For loops whose batches cannot be touched on the device. It sends each image M times; where you can, call the mixer
    on the device instead. The draws are those of the process, which a DataLoader seeds for each worker from
    torch.manual_seed. Set `progress` as training goes on: workers see it, some batches late as they work ahead.
    """

    def __init__(self, mixer: Mixer) -> None:
        self.mixer = mixer
        self._progress = torch.zeros(()).share_memory_()

    @property
    def progress(self) -> float:
        """Share of training done, from 0 to 1: the probability of a mask depends on it."""
        return float(self._progress)

    @progress.setter
    def progress(self, value: float) -> None:
        self._progress.fill_(value)

    def __call__(self, samples: Sequence[Any]) -> Mix:
        images, labels = default_collate(list(samples))
        return self.mixer(images, labels, self.progress)


def check_mixer(net: Ensemble, mixer: Mixer) -> None:
    """That the network reads as many images as the mixer mixes."""
    net = unwrap_ensemble(net)
    if not isinstance(mixer, Mixer):
        raise UserError(f"mixer is a {type(mixer).__name__}; give a mixmo.Mixer")
    if net.members != mixer.members:
        raise UserError(
            f"the network reads {net.members} images at once and the mixer mixes {mixer.members}; "
            f"make it with members={net.members}"
        )
