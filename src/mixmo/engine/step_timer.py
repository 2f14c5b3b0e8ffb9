"""A recipe's training step on random images, ready to be timed, without a data set or a run directory."""

import time
from itertools import count

import torch
from torch import Tensor

from mixmo.data.types import Dataset, Split
from mixmo.engine.batch import Batches
from mixmo.engine.convolutions import choose_kernels
from mixmo.engine.distributed import World
from mixmo.engine.initialization import fresh_network
from mixmo.engine.optimizer import make_optimizer
from mixmo.engine.preflight import check_mask, check_memory
from mixmo.engine.schedule import Schedule
from mixmo.engine.step import Graph, Step
from mixmo.recipes.protocols import Facts
from mixmo.recipes.schema import Recipe
from mixmo.utils.rng import Stream


class StepTimer:
    def __init__(
        self, recipe: Recipe, dataset: Dataset, device: torch.device, compiled: bool, kernels: str = "auto"
    ) -> None:
        self.recipe, self.dataset, self.device = recipe, dataset, device
        net = fresh_network(recipe, dataset)
        check_mask(recipe, net, dataset.size)
        check_memory(net, recipe, dataset.size, device)
        self.net = net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        seen, batch = recipe.seen(dataset.size), recipe.batch_size // recipe.grad_accum_steps
        self.convolutions = choose_kernels(self.net, seen, batch, recipe.precision, device, World(), kernels)
        self.batches = Batches(recipe, dataset, dataset.train, net=self.net)
        self.step = Step(
            self.net,
            make_optimizer(self.net, recipe),
            self.batches,
            compiled=compiled,
            graphed=compiled and device.type == "cuda",
        )
        self.schedule = Schedule(recipe, len(dataset.train.labels))
        self.stream = Stream(recipe.seed, device)
        self.order = torch.randperm(len(dataset.train.labels), device=device, generator=self.stream.at("order"))
        self.chance = self.batches.mixer.chance(0.0)
        self.draws = self.batches.draw(self.samples(0), self.stream.at("step", 0))
        self.steps = count()

    def samples(self, step: int) -> Tensor:
        unique = self.recipe.batch_size // self.recipe.repetition
        first = step % self.schedule.steps_per_epoch * unique
        return self.order[first : first + unique]

    def same_step(self) -> None:
        """Take a step on the first draws, without drawing."""
        self.step(self.draws, self.schedule.lr(0), self.chance, self.schedule.progress(0))

    def next_step(self) -> None:
        """Draw and take a step, as the training loop does."""
        step = next(self.steps)
        draws = self.batches.draw(self.samples(step), self.stream.at("step", step))
        self.step(draws, self.schedule.lr(step), self.chance, self.schedule.progress(step))

    def warm_up(self) -> float:
        """Take the first steps, which compile and record; return the seconds they took."""
        began = time.perf_counter()
        for _ in range(Graph.WARMUP + 1):
            self.next_step()
        synchronize(self.device)
        return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_dataset(name: str, facts: Facts, device: torch.device) -> Dataset:
    channels, height, width = facts.size
    generator = torch.Generator(device).manual_seed(0)

    def split(n: int) -> Split:
        shape = (n, height, width, channels)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device, generator=generator)
        return Split(images, torch.randint(0, facts.classes, (n,), device=device, generator=generator))

    names, train, test = tuple(str(k) for k in range(facts.classes)), split(facts.samples), split(facts.tested)
    return Dataset(name, train, test, names, (0.5,) * channels, (0.25,) * channels)
