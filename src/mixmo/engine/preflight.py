"""What must hold before a training starts: a folder to write to, data that fits the recipe."""

import warnings
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from mixmo.baselines.saliency import SALIENCY
from mixmo.data.types import Dataset, Split
from mixmo.engine.distributed import World
from mixmo.mixing.masks import MASKS
from mixmo.mixing.mixer import grid
from mixmo.models import training_bytes
from mixmo.recipes.schema import Recipe
from mixmo.runs.checkpoint import State
from mixmo.runs.directory import Run
from mixmo.storage import checksums
from mixmo.utils import memory
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError
from mixmo.utils.rng import Stream


def singles(recipe: Recipe) -> list[Recipe]:
    """The recipes of the networks of an ensemble."""
    return [recipe.replace(networks=1, seed=recipe.seed + i) for i in range(recipe.networks)]


def open_or_create(recipe: Recipe, out: Path, resume: bool, fitted: bool) -> Run:
    """The run to write to. One of another recipe is refused; epochs that were `fitted` to a budget are taken over."""
    if not (resume and (out / "recipe.yaml").exists()):
        return Run.create(out, recipe)
    run = Run.open(out)
    if fitted:
        recipe = recipe.replace(epochs=run.recipe.epochs, warmup=run.recipe.warmup)
    ours, theirs = recipe.to_dict(), run.recipe.to_dict()
    different = [f"{key} {theirs[key]} -> {ours[key]}" for key in ours if ours[key] != theirs[key]]
    if different:
        budget = all(change.split()[0] in ("epochs", "warmup") for change in different)
        hint = ", with --minutes if it was made so" if budget else ""
        raise UserError(
            f"{out} is a run of another recipe ({', '.join(different)}); resume with its own{hint}, "
            "or give another --out"
        )
    return run


def check_fit(recipe: Recipe, dataset: Dataset) -> None:
    """Whatever in a recipe cannot work on this data set, said before training starts."""
    samples, height, width = dataset.train.images.shape[:3]
    check_samples(recipe, samples)
    if len(dataset.test.labels) < 2:
        raise UserError(f"{dataset.name} has one test image; scores need 2 or more: a temperature is fitted to half")
    if recipe.size is not None and recipe.size > min(height, width):
        raise UserError(
            f"size = {recipe.size}, but the images of {dataset.name} are {height}x{width}; take a smaller one"
        )
    _, height, width = recipe.seen((1, height, width))
    if recipe.saliency != "none" and not (height == width and SALIENCY[recipe.saliency].fitting(width)):
        grids = " or ".join(map(str, SALIENCY[recipe.saliency].grids))
        raise UserError(
            f"saliency = {recipe.saliency} cuts square images into {grids} blocks a side; "
            f"{dataset.name} has {height}x{width}: resize its images or take another method"
        )
    if recipe.mask in MASKS and recipe.members > 1:
        h, w = grid(height, width, recipe.stride)
        if min(h, w) < MASKS[recipe.mask].minimum:
            raise UserError(
                f"mask '{recipe.mask}' needs features of at least {MASKS[recipe.mask].minimum} positions a side; "
                f"{dataset.name} gives {h}x{w}: take another mask"
            )


def check_samples(recipe: Recipe, samples: int) -> None:
    """There must be images to hold out, and then enough for a step."""
    if recipe.validation >= samples:
        raise UserError(
            f"validation = {recipe.validation}, but {recipe.dataset} has only {samples} training images; hold out fewer"
        )
    unique = recipe.batch_size // recipe.repetition
    if samples - recipe.validation < unique:
        raise UserError(
            f"batch_size = {recipe.batch_size} needs {unique} images a step; "
            f"{recipe.dataset} has {samples - recipe.validation}: take a smaller batch_size"
        )


def check_memory(recipe: Recipe, dataset: Dataset, device: torch.device, processes: int = 1) -> None:
    """A step that cannot fit into the memory of the device is refused before it fills it."""
    channels, height, width = size = dataset.size
    with torch.device("meta"):
        net = recipe.network(len(dataset.classes), channels)
    needed = training_bytes(net, recipe.seen(size), recipe.batch_size // processes, recipe.precision)
    there = memory.total(device)
    if needed > there:
        raise UserError(
            f"a step of {recipe.architecture} with {recipe.members} members on {recipe.batch_size} images of "
            f"{height}x{width} needs more than {memory.amount(needed)}, and there are {memory.amount(there)}; "
            "take a smaller batch_size or width, or fewer members"
        )


def check_world(recipe: Recipe, world: World) -> None:
    """Whatever in a recipe cannot be shared out among these processes."""
    if world.size == 1:
        return
    if recipe.batch_size % world.size:
        raise UserError(
            f"batch_size = {recipe.batch_size} cannot be shared out among {world.size} processes; "
            f"take a multiple of {world.size}"
        )
    if recipe.ghost and recipe.ghosts % world.size:
        raise UserError(
            f"the {recipe.ghosts} ghost batches of a step cannot be shared out among {world.size} processes; "
            f"take another batch_size or ghost"
        )
    whole = {"feature_mixing": recipe.feature_mixing, "saliency": recipe.saliency, "subnets": recipe.subnets}
    for name, value in whole.items():
        if value not in ("none", 0):
            raise UserError(
                f"{name} = {value} mixes the samples of a whole batch in one network, and runs on one device only; "
                f"start it without torchrun"
            )


def check_logged(run: Run, state: State, steps: int) -> None:
    """A checkpoint must be of this training; metrics.jsonl should have its epochs, whose scores are not made again."""
    if state.step > steps:
        raise UserError(
            f"the checkpoint in {run.path} is of step {state.step}, but this training has {steps}; remove the folder "
            f"{run.path / 'checkpoints'} to train from the start"
        )
    found = {line["epoch"] for line in run.read_metrics(until=state.epochs_logged)}
    # Earlier versions remembered how many epochs there were, and nothing of them.
    later = range(max(found, default=0) + 1, state.epochs_logged + 1)
    if lost := sorted(set(later if state.logged is None else state.logged) - found):
        warnings.warn(
            f"{run.path / 'metrics.jsonl'} has lost its lines of {checksums.list_epochs(lost)}; training goes on "
            f"without: remove the folder {run.path / 'checkpoints'} first if you want to have them again",
            stacklevel=2,
        )


def check_data(run: Run, recipe: Recipe, dataset: Dataset) -> None:
    """A training goes on with the data that it began with; another class or image would shift all that come after."""
    try:
        before, now = run.read_dataset(), describe(dataset, recipe)
    except UserError:  # lost or damaged: it is written again
        return
    for what in ("classes", "size", "images"):
        old, new = before.get(what, now[what]), now[what]  # earlier versions did not count the images
        if old != new:
            known = old if isinstance(old, list) else [old]  # of a file that was damaged
            differ = [pair for pair in zip_longest(known, new) if pair[0] != pair[1]]
            raise UserError(
                f"{recipe.dataset} has changed since the training in {run.path} began ({what}: {differ[0][0]} -> "
                f"{differ[0][1]}); bring back what it was, or train into another --out"
            )


@on_cpu
def hold_out(split: Split, count: int, seed: int) -> tuple[Split, Split | None]:
    """Training part and validation part, by a seeded shuffle that is the same on every device."""
    if count == 0:
        return split, None
    order = torch.randperm(len(split.labels), generator=Stream(seed, torch.device("cpu")).at("validation"))
    order = order.to(split.labels.device)
    rest, held = order[count:].sort().values, order[:count].sort().values
    return Split(split.images[rest], split.labels[rest]), Split(split.images[held], split.labels[held])


def describe(dataset: Dataset, recipe: Recipe) -> dict[str, Any]:
    """What of a data set travels with the weights; the size is that of what the network sees.

    `resize` is the shorter side of the images that this is the centre of, or None. `images` for training and for
    testing are counted so that a change is noticed.
    """
    return {
        "name": dataset.name,
        "classes": list(dataset.classes),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
        "size": list(recipe.seen(dataset.size)),
        "resize": None if recipe.size is None else min(dataset.size[1:]),
        "images": [len(dataset.train.labels), len(dataset.test.labels)],
    }
