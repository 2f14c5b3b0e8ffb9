"""Checks before a training starts: does the recipe fit the data set, the memory and the processes?"""

from itertools import zip_longest

import torch

from mixmo.baselines.saliency import SALIENCY
from mixmo.data.types import Dataset
from mixmo.engine.distributed import World
from mixmo.engine.records import dataset_record
from mixmo.mixing.masks import MASKS
from mixmo.mixing.mixer import grid
from mixmo.models import Network, training_bytes
from mixmo.recipes.schema import Recipe
from mixmo.runs.directory import Run
from mixmo.utils import memory
from mixmo.utils.errors import UserError


def check_fit(recipe: Recipe, dataset: Dataset) -> None:
    """Raise an error if the recipe cannot work on this data set."""
    samples, height, width = dataset.train.images.shape[:3]
    check_samples(recipe, samples)
    if recipe.size is not None and recipe.size > min(height, width):
        raise UserError(f"size = {recipe.size}, but {dataset.name} has images of {height}x{width}; take a smaller one")
    _, height, width = recipe.seen((1, height, width))
    if recipe.saliency != "none" and not (height == width and SALIENCY[recipe.saliency].fitting(width)):
        grids = " or ".join(map(str, SALIENCY[recipe.saliency].grids))
        raise UserError(
            f"saliency = {recipe.saliency} cuts square images into {grids} blocks per side, and {dataset.name} has "
            f"{height}x{width}; resize its images or take another method"
        )
    h, w = grid(height, width, recipe.stride)
    if recipe.mask in MASKS and recipe.members > 1 and min(h, w) < (least := MASKS[recipe.mask].minimum):
        raise UserError(
            f"mask '{recipe.mask}' needs features of at least {least}x{least}, and {dataset.name} gives {h}x{w}; "
            "take another mask"
        )


def check_samples(recipe: Recipe, samples: int) -> None:
    """Raise an error if too few training images are left for one step."""
    unique, left = recipe.batch_size // recipe.repetition, samples - recipe.validation
    if left < unique:
        raise UserError(
            f"validation = {recipe.validation} leaves {max(0, left)} of the {samples} training images of "
            f"{recipe.dataset}, and batch_size = {recipe.batch_size} needs {unique} per step; take less of one of them"
        )


def check_memory(
    net: Network, recipe: Recipe, size: tuple[int, int, int], device: torch.device, processes: int = 1
) -> None:
    """Raise an error if a step on images (C, H, W) cannot fit into the memory of the device."""
    needed = training_bytes(net, recipe.seen(size), recipe.batch_size // processes, recipe.precision)
    if needed > (there := memory.total(device)):
        raise UserError(
            f"a step of {recipe.architecture} with {recipe.members} members on {recipe.batch_size} images of "
            f"{size[1]}x{size[2]} needs more than {memory.amount(needed)}, and there are {memory.amount(there)}; "
            "take a smaller batch_size or width, or fewer members"
        )


def check_world(recipe: Recipe, world: World) -> None:
    """Raise an error if the batches of a recipe cannot be divided among these processes."""
    whole = {"hidden": recipe.hidden, "saliency": recipe.saliency, "subnets": recipe.subnets}
    used = [f"{name} = {value}" for name, value in whole.items() if value not in ("none", 0)]
    if world.size > 1 and used:
        raise UserError(f"{used[0]} works on a whole batch, and on one device only; start it without torchrun")
    parts = recipe.ghosts if recipe.ghost else recipe.batch_size
    if parts % world.size:
        what = "ghost batches" if recipe.ghost else "images"
        raise UserError(
            f"the {parts} {what} of a step cannot be divided among {world.size} processes; take another batch_size"
        )


def check_data(run: Run, recipe: Recipe, dataset: Dataset) -> None:
    """Raise an error if the data set has changed since the training began: every later batch would differ."""
    try:
        before, now = run.json("dataset.json"), dataset_record(dataset, recipe)
    except UserError:  # lost or damaged: it is written again
        return
    for what in ("classes", "size", "images"):
        old, new = before.get(what, now[what]), now[what]  # earlier versions did not count the images
        if old != new:
            known = old if isinstance(old, list) else [old]
            was, found = next(pair for pair in zip_longest(known, new) if pair[0] != pair[1])
            raise UserError(
                f"{recipe.dataset} has changed since the training in {run.path} began ({what}: {was} -> {found}); "
                "restore it, or train into another --out"
            )
