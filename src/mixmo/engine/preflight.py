"""Checks before a training starts: does the recipe fit the data set, the memory and the processes?"""

import warnings
from itertools import zip_longest

import torch
from torch import Tensor

from mixmo.baselines.saliency import SALIENCY
from mixmo.data.types import Dataset
from mixmo.engine.distributed import World
from mixmo.engine.records import dataset_record
from mixmo.engine.schedule import Schedule
from mixmo.engine.source import held_out_rows
from mixmo.kernels.devices import check_fp8
from mixmo.mixing.masks import MASKS
from mixmo.mixing.mixer import grid
from mixmo.models import Ensemble, training_bytes
from mixmo.recipes.schema import Recipe
from mixmo.runs.checkpoint import State
from mixmo.runs.directory import Run
from mixmo.utils import memory
from mixmo.utils.errors import UserError


def check_fit(recipe: Recipe, dataset: Dataset) -> None:
    """Raise an error if the recipe cannot work on this data set."""
    samples, height, width = dataset.train.images.shape[:3]
    check_samples(recipe, samples)
    check_crop(recipe, height, width)
    check_classes(recipe, dataset)
    _, height, width = recipe.seen((1, height, width))
    if recipe.saliency != "none" and not (height == width and SALIENCY[recipe.saliency].fitting(width)):
        blocks = " or ".join(map(str, SALIENCY[recipe.saliency].grids))
        raise UserError(f"{recipe.saliency} needs square images of {blocks} blocks per side, not {height}x{width}")


def check_classes(recipe: Recipe, dataset: Dataset) -> None:
    """Raise an error if a class has no training image that is not held out."""
    labels = dataset.train.labels
    rest, _ = held_out_rows(len(labels), recipe.held_out(len(labels)), recipe.seed)
    counts = labels.cpu()[rest].bincount(minlength=len(dataset.classes))
    if empty := [name for name, count in zip(dataset.classes, counts.tolist(), strict=True) if not count]:
        held = f", with validation = {recipe.validation:g} held out" if recipe.validation else ""
        raise UserError(f"classes without training images in {dataset.name}{held}: {', '.join(empty[:5])}; add images")


def check_precision(recipe: Recipe, device: torch.device) -> None:
    """Raise an error if the device cannot compute in the recipe's precision."""
    if recipe.precision == "fp8":
        check_fp8(device)


def check_mask(recipe: Recipe, net: Ensemble, size: tuple[int, int, int]) -> None:
    """Raise an error if the features of images (C, H, W) are too small for the mask."""
    h, w = grid(*recipe.seen(size)[1:], net.stride)
    if recipe.mask in MASKS and recipe.members > 1 and min(h, w) < (least := MASKS[recipe.mask].minimum):
        raise UserError(f"mask '{recipe.mask}' needs features of {least}x{least}, not {h}x{w}; use another mask")


def check_samples(recipe: Recipe, samples: int) -> None:
    """Raise an error if too few training images are left for one step."""
    unique, left = recipe.batch_size // recipe.repetition, samples - recipe.held_out(samples)
    if left < unique:
        step = f"a step reads {unique} of them (batch_size = {recipe.batch_size}, repetition = {recipe.repetition})"
        there = f"{recipe.dataset} has {samples} training images, validation = {recipe.validation:g} leaves {left}"
        remedy = f"set batch_size to {most} or less" if (most := left * recipe.repetition) > 1 else "lower validation"
        raise UserError(f"{there}, and {step}; {remedy}")


def check_crop(recipe: Recipe, height: int, width: int) -> None:
    """Raise an error if a random crop could contain no pixel of the image."""
    _, *sides = recipe.seen((1, height, width))
    if recipe.crop >= min(sides):
        padded = f"crop = {recipe.crop} pads images of {height} x {width} pixels"
        raise UserError(f"{padded} so far that some crops would contain only padding; set at most {min(sides) - 1}")


def check_memory(
    net: Ensemble, recipe: Recipe, size: tuple[int, int, int], device: torch.device, processes: int = 1
) -> None:
    """Raise an error if a step on images (C, H, W) cannot fit into the memory of the device."""
    at_once = recipe.batch_size // processes // recipe.grad_accum_steps
    needed = training_bytes(net, recipe.seen(size), at_once, recipe.precision)
    what = f"a step of {recipe.architecture} with {recipe.members} members and batch_size = {recipe.batch_size}"
    if needed > (there := memory.total(device)):
        amounts = f"needs more than {memory.amount(needed)}, and there are {memory.amount(there)}"
        raise UserError(f"{what} {amounts}; take a smaller batch_size or width, or fewer members")


def check_world(recipe: Recipe, world: World) -> None:
    """Raise an error if the batches of a recipe cannot be divided among these processes."""
    whole = {"feature_mixing": recipe.feature_mixing, "saliency": recipe.saliency, "subnets": recipe.subnets}
    used = [f"{name} = {value}" for name, value in whole.items() if value not in ("none", 0)]
    if world.size > 1 and used:
        raise UserError(f"{used[0]} works on a whole batch, and on one device only; start it without torchrun")
    parts = recipe.ghosts if recipe.ghost else recipe.batch_size
    if parts % world.size:
        what = f"{parts} {'ghost batches' if recipe.ghost else 'images'} per step"
        raise UserError(f"{what} cannot be divided among {world.size} processes; take another batch_size")


def check_same(recipe: Recipe, dataset: Dataset, world: World) -> None:
    """Raise an error, in all processes, if they were started with different recipes or found different data."""
    if world.size == 1:
        return
    pixels = (split.images.sum().item() for split in (dataset.train, dataset.test) if isinstance(split.images, Tensor))
    labels = [split.labels.cpu().numpy().tobytes() for split in (dataset.train, dataset.test)]
    found = {"recipe": recipe.to_dict(), "data": {"images": [*pixels], "labels": labels, "classes": dataset.classes}}
    for rank, other in enumerate(everywhere := world.all(found)):
        for what, first in everywhere[0].items():
            if different := [key for key, value in first.items() if other[what][key] != value]:
                raise UserError(
                    f"process {rank} and process 0 differ in their {what} ({', '.join(different[:3])}); "
                    "start all of them with the same command and the same files"
                )


def check_progress(state: State, schedule: Schedule, run: Run) -> None:
    """Raise an error if a checkpoint is of a step or an epoch that the training does not have."""
    if state.step > schedule.steps or state.epochs_logged > schedule.epoch(state.step):
        what = f"the checkpoint of step {state.step} and epoch {state.epochs_logged}"
        reason = f"does not fit {run.path}, a training of {schedule.steps} steps"
        raise UserError(f"{what} {reason}; restore it from a copy, or train into another --out")


def check_data(run: Run, recipe: Recipe, dataset: Dataset) -> None:
    """Raise an error if the data set has changed since the training began: every later batch would differ.

    If only pixels differ, warn: another version of Pillow may decode them a little differently.
    """
    try:
        before, now = run.read_dataset(), dataset_record(dataset, recipe)
    except UserError:  # lost or damaged: it is written again
        return
    for what in ("classes", "size", "images"):
        old, new = before.get(what, now[what]), now[what]  # earlier versions did not count the images
        if different := [f"{was} -> {found}" for was, found in zip_longest(old, new) if was != found]:
            change = f"({what}: {different[0]}) since the training in {run.path} began"
            raise UserError(f"{recipe.dataset} has changed {change}; restore it, or give another --out")
    sums = before.get("pixels") or now["pixels"]
    if any(old not in (None, new) for old, new in zip(sums, now["pixels"], strict=False) if new is not None):
        files = "files were replaced, or are decoded by another version of Pillow"
        warnings.warn(
            f"images of {recipe.dataset} differ from those that {run.path} was trained on ({files}); "
            "the result will differ from that of an uninterrupted training",
            stacklevel=2,
        )
