"""What runs cost on this device: from steps measured on an H200, or scaled by a few steps measured here."""

import functools
from typing import NamedTuple

import numpy as np
import torch

from mixmo.engine.estimate import estimate
from mixmo.engine.schedule import Schedule
from mixmo.recipes import named
from mixmo.recipes.protocols import FACTS
from mixmo.recipes.schema import Recipe
from mixmo.reproduce.scores import size_of

# benchmarks/RESULTS.md, one H200, bf16, end to end: multiply-adds of the network, batch, images/s.
MEASURED = (
    (5.9571e9, 256, 10_837),
    (5.9571e9, 64, 8_928),
    (0.9615e9, 512, 48_336),
    (0.9615e9, 256, 41_785),
    (0.9615e9, 64, 23_032),
)
FP32 = 1.7  # times bf16: predicting with TF32 takes 1.6 (WRN-28-4) to 1.8 times as long (WRN-28-10)
SCORING = 0.5 / 10_000  # seconds per epoch and test image for all scores, beside the prediction
COMPILING = 40.0  # seconds per run
SUBNETS, SALIENCY = 3.0, 2.0  # times a step, by the paper's estimate for GradAug and Puzzle-Mix


class Speed(NamedTuple):
    """How fast a device is: a step takes `step` + batch (`image` + `operation` multiply-adds) seconds, in bf16."""

    name: str
    step: float
    image: float
    operation: float
    fp32: float = FP32  # its time over that of bf16
    compiling: float = COMPILING
    measured: bool = False  # now, on this device

    def seconds(self, recipe: Recipe) -> float:
        """Return the seconds of one training step."""
        seconds = self.step + recipe.batch_size * (self.image + self.operation * size_of(recipe)["multiply_adds"])
        seconds *= self.fp32 if recipe.precision == "fp32" else 1.0
        return seconds * (SUBNETS if recipe.subnets else SALIENCY if recipe.saliency != "none" else 1.0)


@functools.cache
def h200() -> Speed:
    """The three numbers by least squares of the measured rates' relative errors."""
    seconds = np.array([batch / rate for _, batch, rate in MEASURED])
    terms = np.array([[1, batch, batch * operations] for operations, batch, _ in MEASURED])
    step, image, operation = np.linalg.lstsq(terms / seconds[:, None], np.ones(len(seconds)), rcond=None)[0]
    return Speed("NVIDIA H200", float(step), float(image), float(operation))


def run_seconds(recipe: Recipe, speed: Speed) -> float:
    """Return the seconds of a whole run: steps, prediction and scores after every epoch, compilation."""
    facts = FACTS[recipe.dataset]
    steps = Schedule(recipe, facts.samples - recipe.held_out(facts.samples)).steps
    # Of forward and backward, a third is forward.
    predicting = facts.tested * (speed.image + speed.operation * size_of(recipe)["multiply_adds"]) / 3
    scoring = SCORING * facts.tested
    return steps * speed.seconds(recipe) + recipe.epochs * (predicting + scoring) + speed.compiling


def speed_of(device: torch.device) -> Speed:
    """An H200 is known; another device is measured by a few steps of small networks."""
    if device.type == "cuda":
        name, known = torch.cuda.get_device_name(device), h200()
        if "H200" in name:
            return known._replace(name=name)
        probe = named("cifar100/vanilla").replace(precision="bf16", batch_size=64)
        slower = estimate(probe, FACTS[probe.dataset], device).step_seconds / known.seconds(probe)
        step, image, operation = (slower * number for number in (known.step, known.image, known.operation))
        return Speed(name, step, image, operation, measured=True)
    # A multiply-add's time from a network that is hardly anything else, what is left of a tiny one's is a step's own: a
    # difference of the two would be mostly noise on a busy machine.
    large, small = named("cifar100/vanilla").replace(width=1, batch_size=32), named("digits/vanilla")
    taken = [estimate(probe, FACTS[probe.dataset], device).step_seconds for probe in (large, small)]
    work = [probe.batch_size * size_of(probe)["multiply_adds"] for probe in (large, small)]
    operation = taken[0] / work[0]
    step = max(0.0, taken[1] - operation * work[1])
    return Speed("CPU", step, 0.0, operation, fp32=1.0, compiling=0.0, measured=True)
