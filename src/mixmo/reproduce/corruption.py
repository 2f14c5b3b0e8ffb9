"""Scores on corrupted test images: CIFAR-100-C, another set of its layout, or corrupted digits where they stand in."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mixmo import data
from mixmo.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from mixmo.data.types import Split
from mixmo.evaluation.images import SplitImages
from mixmo.evaluation.models import open_models
from mixmo.evaluation.pipeline import predict_images
from mixmo.evaluation.robustness import score, score_corruptions
from mixmo.recipes.schema import Recipe
from mixmo.runs.directory import Run
from mixmo.utils.errors import UserError

ORIGINAL = "CIFAR-100-C"


def images_of(recipe: Recipe, folder: Path) -> str:
    """Name the images a run is scored on; scores on different images are never shown together."""
    return "digits, corrupted here" if recipe.dataset == "digits" else folder.name


def require_images(folder: Path) -> None:
    if not folder.is_dir():
        get = f"`mixmo data get cifar100-c --to {folder.parent}` fetches the corrupted test set"
        raise UserError(f"{folder} is not there; {get}, `mixmo data corrupt` makes one, which --corrupted names")


def corrupted_scores(runs: Sequence[Run], which: str, folder: Path, device: torch.device) -> dict[str, Any]:
    """Score a run or an ensemble on corrupted images: pooled scores and the name of the images."""
    paths = [run.path for run in runs]
    if runs[0].recipe.dataset == "digits":
        models, images = open_models(paths, which, device), SplitImages(corrupted_digits())
        pooled = score(*predict_images(models, images, "scoring corrupted digits"))
    else:
        require_images(folder)
        pooled = score_corruptions(paths, folder, which, device).pooled
    return {"images": images_of(runs[0].recipe, folder), "pooled": pooled._asdict()}


@functools.cache
def corrupted_digits() -> Split:
    """The test digits under each corruption of each severity, one set after the other."""
    test = data.load("digits").test
    coloured_NHWC = test.resident.expand(-1, -1, -1, 3)
    cells = [(name, severity) for name in sorted(CORRUPTIONS) for severity in SEVERITIES]
    changed = [
        corrupt(coloured_NHWC, name, severity, torch.Generator().manual_seed(place))
        for place, (name, severity) in enumerate(cells)
    ]
    grey_NHWC = torch.cat(changed).float().mean(3, keepdim=True).to(torch.uint8)
    return Split(grey_NHWC, test.labels.repeat(len(cells)))
