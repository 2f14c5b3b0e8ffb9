"""The samples of each step of an epoch, from memory on the device or from files."""

from collections.abc import Generator
from typing import NamedTuple

import torch
from torch import Tensor

from mixmo.augment.pixel import AUGMENTATIONS
from mixmo.data.stream import NOTHING
from mixmo.data.types import Split
from mixmo.engine.distributed import World
from mixmo.mixing.pairing import steps_per_epoch
from mixmo.recipes.schema import Recipe
from mixmo.utils.device import on_cpu
from mixmo.utils.rng import Stream


class Partners(NamedTuple):
    """The other images of a pixel augmentation; with a leading dimension for several steps."""

    number: Tensor  # (M, N) index of the sample in the whole data set
    whether: Tensor  # (M, N) uniform: below pixel_p, the augmentation is applied and its partner used


class Plan(NamedTuple):
    """The samples of all steps of an epoch, on the CPU: the order does not depend on the device."""

    unique: Tensor  # (steps, n)
    partners: Partners | None  # of all steps


class Samples(NamedTuple):
    """The samples of one step, on the device."""

    unique: Tensor  # (n,) numbers, each to be repeated b times
    partners: Partners | None
    pool: Split | None  # what the numbers count in, if it is not the resident data set


@on_cpu
def plan(recipe: Recipe, samples: int, epoch: int, labels: Tensor | None = None) -> Plan:
    """Draw the order of all samples for an epoch, and their partners; balanced sampling needs their labels."""
    stream = Stream(recipe.seed, torch.device("cpu"))
    n, steps = recipe.batch_size // recipe.repetition, steps_per_epoch(samples, recipe.batch_size, recipe.repetition)
    if recipe.balance == "sampling":
        assert labels is not None
        chance_D = 1 / labels.bincount()[labels]
        order = chance_D.multinomial(samples, replacement=True, generator=stream.at("order", epoch))
    else:
        order = torch.randperm(samples, generator=stream.at("order", epoch))
    partners = None
    if recipe.pixel != "none" and AUGMENTATIONS[recipe.pixel].needs_partner:
        partners = draw_partners((steps, recipe.members, recipe.batch_size), samples, stream.at("partner", epoch))
    return Plan(order[: steps * n].view(steps, n), partners)


def draw_partners(shape: tuple[int, ...], samples: int, generator: torch.Generator) -> Partners:
    number = torch.randint(samples, shape, device=generator.device, generator=generator)
    return Partners(number, torch.rand(shape, device=generator.device, generator=generator))


def each_step(
    recipe: Recipe, split: Split, planned: Plan, first: int, last: int, world: World | None = None
) -> Generator[Samples]:
    """Yield the samples of the steps `first` to `last` (exclusive) of a planned epoch; each process reads a part."""
    world, device, partners = world or World(), split.labels.device, planned.partners
    chosen = partners and Partners(*(values[first:last].to(device) for values in partners))
    if isinstance(split.images, Tensor):
        unique = planned.unique[first:last].to(device)
        for step in range(last - first):
            yield Samples(unique[step], chosen and Partners(*(values[step] for values in chosen)), None)
        return
    # A pool holds the n images of the step, then a place for each partner; unused partners are not read.
    n = planned.unique.shape[1]
    place = torch.arange(n, device=device)
    partner_place = torch.arange(n, n + recipe.members * recipe.batch_size, device=device).view(recipe.members, -1)

    def numbers(step: int) -> Tensor:
        if partners is None:
            return planned.unique[step]
        seen = partners.number[step].where(partners.whether[step] < recipe.pixel_p, NOTHING)
        return torch.cat((planned.unique[step], seen.flatten()))

    count = len(numbers(first)) if first < last else 0
    mine = world.part(count)
    for step, read in enumerate(split.images.read(numbers(step)[mine] for step in range(first, last))):
        pool = Split(world.gather(read.resident, 0, count), world.gather(read.labels, 0, count))
        yield Samples(place, chosen and Partners(partner_place, chosen.whether[step]), pool)


def hold_out(split: Split, count: int, seed: int) -> tuple[Split, Split | None]:
    """Divide a split into training and validation images."""
    if count == 0:
        return split, None
    rest, held = (rows.to(split.labels.device) for rows in held_out_rows(len(split.labels), count, seed))
    return Split(split.images[rest], split.labels[rest]), Split(split.images[held], split.labels[held])


@on_cpu
def held_out_rows(samples: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the rows of the training and of the validation images, by a seeded shuffle: the same on every device."""
    order = torch.randperm(samples, generator=Stream(seed, torch.device("cpu")).at("validation"))
    return order[count:].sort().values, order[:count].sort().values
