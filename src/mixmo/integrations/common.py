"""Mixing in loops that count their own steps or make their batches in worker processes."""

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
    """A Mixer whose random draws depend only on the seed and the step.

    So every loop that counts its steps trains alike, and a resumed one draws what it would have drawn:
    `mix = step_mixer(images, labels, step, steps)`.
    """

    def __init__(self, mixer: Mixer, seed: int = 0) -> None:
        self.mixer, self.seed = mixer, seed

    def __call__(
        self, images: Tensor, labels: Tensor, step: int, steps: float, *, rank: int = 0, processes: int = 1
    ) -> Mix:
        """Pair and mix one batch.

        Args:
            images: Normalised images (N, C, H, W).
            labels: Labels (N,), or soft labels (N, K).
            step: Number of the batch, from 0.
            steps: Number of batches of the whole training; math.inf if unknown.
            rank: Number of this process in distributed training, which has its own draws.
            processes: Number of processes.
        """
        if not isinstance(images, Tensor):
            raise UserError(f"images are a {type(images).__name__}; let batches be pairs (images, labels) of tensors")
        generator = Stream(self.seed, images.device).at("step", step * processes + rank)
        return self.mixer(images, labels, progress=min(1.0, step / steps), generator=generator)


class Collate:
    """A DataLoader's `collate_fn` that returns a Mix: `DataLoader(dataset, 64, collate_fn=Collate(mixer))`.

    For loops whose batches cannot be changed on the device. It transfers each image M times; where possible, call the
    mixer on the device instead. The draws are those of the process, which a DataLoader seeds for each worker from
    torch.manual_seed. Set `progress` during training: workers read it, some batches late as they work ahead.
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
        """Return the mixed batch of pairs (image, label)."""
        images, labels = default_collate(list(samples))
        return self.mixer(images, labels, self.progress)


def check_mixer(net: Ensemble, mixer: Mixer) -> None:
    """Raise a UserError unless the network reads as many images as the mixer mixes."""
    net = unwrap_ensemble(net)
    if not isinstance(mixer, Mixer) or net.members != mixer.members:
        raise UserError(f"mixer is {mixer!r}; give mixmo.Mixer(..., members={net.members}), as the network has")
