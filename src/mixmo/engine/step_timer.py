"""A recipe's step on random images, ready to be timed. No data set and no run directory is needed."""

import time
from itertools import count

import torch
from torch import Tensor

from mixmo.data.types import Dataset, Split
from mixmo.engine.batch import Batches
from mixmo.engine.initialization import fresh_network
from mixmo.engine.preflight import check_memory
from mixmo.engine.schedule import Schedule
from mixmo.engine.step import Graph, Step, sgd
from mixmo.recipes.protocols import Facts
from mixmo.recipes.schema import Recipe
from mixmo.utils.rng import Stream


class Bed:
    """A recipe's network, batches and step."""

    def __init__(self, recipe: Recipe, dataset: Dataset, device: torch.device, compiled: bool) -> None:
        self.recipe, self.dataset, self.device = recipe, dataset, device
        check_memory(recipe, dataset, device)
        self.net = fresh_network(recipe, dataset).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.batches = Batches(recipe, dataset, dataset.train)
        self.step = Step(
            self.net,
            sgd(self.net, recipe, recipe.rate),
            self.batches,
            precision=recipe.precision,
            compiled=compiled,
            graphed=compiled and device.type == "cuda",
        )
        self.schedule = Schedule(recipe, len(dataset.train.labels))
        self.stream = Stream(recipe.seed, device)
        self.order = torch.randperm(len(dataset.train.labels), device=device, generator=self.stream.at("order"))
        self.chance = self.batches.mixer.chance(0.0)
        self.draws = self.batches.draw(self.samples(0), self.stream.at("step", 0))
        self.numbers = count()

    def samples(self, step: int) -> Tensor:
        unique = self.recipe.batch_size // self.recipe.repetition
        first = step % self.schedule.steps_per_epoch * unique
        return self.order[first : first + unique]

    def same_step(self) -> None:
        """The step alone, on draws that are there."""
        self.step(self.draws, self.schedule.lr(0), self.chance)

    def next_step(self) -> None:
        """The step as the training loop makes it."""
        number = next(self.numbers)
        draws = self.batches.draw(self.samples(number), self.stream.at("step", number))
        self.step(draws, self.schedule.lr(number), self.chance)

    def warm_up(self) -> float:
        """Seconds until every later step runs alike."""
        began = time.perf_counter()
        for _ in range(Graph.WARMUP + 1):
            self.next_step()
        wait(self.device)
        return time.perf_counter() - began


def wait(device: torch.device) -> None:
    """Until the device has done what it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_dataset(name: str, facts: Facts, device: torch.device) -> Dataset:
    """Random images and labels, of which these are the facts."""
    channels, height, width = facts.size
    generator = torch.Generator(device).manual_seed(0)

    def split(n: int) -> Split:
        shape = (n, height, width, channels)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device, generator=generator)
        return Split(images, torch.randint(0, facts.classes, (n,), device=device, generator=generator))

    names, train, test = tuple(str(k) for k in range(facts.classes)), split(facts.samples), split(facts.tested)
    return Dataset(name, train, test, names, (0.5,) * channels, (0.25,) * channels)
