"""Estimate the training time of a recipe from a few of its steps on random images, without its data set."""

import math
import time
from typing import NamedTuple

import torch

from mixmo.engine.preflight import check_crop, check_samples
from mixmo.engine.schedule import Schedule
from mixmo.engine.step_timer import StepTimer, random_dataset, synchronize
from mixmo.recipes.protocols import Facts
from mixmo.recipes.schema import Recipe
from mixmo.utils.progress import Work

BUDGET = 20.0  # seconds to measure for, after the warm-up
STEPS = 20


class Estimate(NamedTuple):
    device: str
    steps: int
    steps_per_epoch: int
    step_seconds: float
    seconds: float | None  # of training in all


def estimate(recipe: Recipe, facts: Facts, device: torch.device, measure: bool = True) -> Estimate:
    """Count the steps of a training and, with `measure`, time some of them."""
    check_samples(recipe, facts.samples)
    check_crop(recipe, *facts.size[1:])
    schedule = Schedule(recipe, facts.samples - recipe.held_out(facts.samples))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    if not measure:
        return Estimate(name, schedule.steps, schedule.steps_per_epoch, 0.0, None)
    few = facts._replace(samples=2 * recipe.batch_size, tested=2)
    compiled, dataset = device.type == "cuda", random_dataset(recipe.dataset, few, device)
    timer = StepTimer(recipe, dataset, device, compiled, kernels="cudnn")  # choosing would take longer than the rest
    began, first = time.monotonic(), 5 if device.type == "cuda" else 1
    with Work("warm-up steps"):
        for _ in range(first):
            timer.next_step()
        synchronize(device)
    expected = min(STEPS, math.ceil(BUDGET * first / max(time.monotonic() - began, 1e-9)))
    began, done = time.monotonic(), 0
    with Work("timing steps", expected) as work:
        while done < STEPS and time.monotonic() - began < BUDGET:
            timer.next_step()
            done += 1
            work.advance()
        synchronize(device)
    each = (time.monotonic() - began) / done
    return Estimate(name, schedule.steps, schedule.steps_per_epoch, each, each * schedule.steps)
