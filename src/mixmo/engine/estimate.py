"""How long a recipe would take here, from a few of its steps on random images. No data set is needed."""

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch

from mixmo.engine.loop import Trainer
from mixmo.engine.prepare import check_samples
from mixmo.engine.runtime import Runtime
from mixmo.engine.schedule import Schedule
from mixmo.recipes.protocols import Facts
from mixmo.recipes.schema import Recipe
from mixmo.runs import Run
from mixmo.types import Dataset, Split

BUDGET = 20.0  # seconds to measure for, after the warm-up
STEPS = 20


class Estimate(NamedTuple):
    device: str
    steps: int
    steps_per_epoch: int
    step_seconds: float
    seconds: float | None  # of training in all


def estimate(recipe: Recipe, facts: Facts, device: torch.device, measure: bool = True) -> Estimate:
    """Steps and, if measured, time."""
    check_samples(recipe, facts.samples)
    schedule = Schedule(recipe, facts.samples - recipe.validation)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    if not measure:
        return Estimate(name, schedule.steps, schedule.steps_per_epoch, 0.0, None)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", recipe)
        trainer = Trainer(recipe, random_dataset(recipe, facts, device), run, Runtime(quiet=True), device)
    unique = torch.arange(recipe.batch_size // recipe.repetition, device=device)

    def step(number: int) -> None:
        trainer.step(trainer.batches.draw(unique, trainer.stream.at("step", number)), 0.0, recipe.p)

    warm = 5 if device.type == "cuda" else 1
    for number in range(warm):
        step(number)
    trainer.step.meter.tolist()  # waits for the device
    began, done = time.monotonic(), 0
    while done < STEPS and time.monotonic() - began < BUDGET:
        step(warm + done)
        done += 1
    trainer.step.meter.tolist()
    each = (time.monotonic() - began) / done
    return Estimate(name, schedule.steps, schedule.steps_per_epoch, each, each * schedule.steps)


def random_dataset(recipe: Recipe, facts: Facts, device: torch.device) -> Dataset:
    """A stand-in of the data set's image size and classes, as large as one batch and the validation split need."""
    channels, height, width = facts.size
    count = 2 * recipe.batch_size + recipe.validation
    images = torch.randint(0, 256, (count, height, width, channels), dtype=torch.uint8, device=device)
    labels = torch.randint(0, facts.classes, (count,), device=device)
    split = Split(images, labels)
    names = tuple(str(k) for k in range(facts.classes))
    return Dataset(recipe.dataset, split, split, names, (0.5,) * channels, (0.25,) * channels)
