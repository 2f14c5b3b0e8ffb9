"""Distillation: the predictions of trained networks as part of the targets."""

from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixmo.data.types import Dataset
from mixmo.hub.loading import load
from mixmo.mixing.types import Mix
from mixmo.recipes.schema import Recipe
from mixmo.runs.directory import Run, is_run
from mixmo.utils.errors import UserError


class Teacher(nn.Module):
    """An ensemble of trained networks, which does not train: the mean of their logits."""

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks).requires_grad_(False).eval()

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([net(x) for net in self.networks]).mean(0)


def load_teacher(recipe: Recipe, dataset: Dataset) -> Teacher | None:
    """Return the teacher, all networks of a run; classes, normalisation and image size must be the same as here."""
    if recipe.teacher is None:
        return None
    path = Path(recipe.teacher)
    places = Run.open(path).network_paths() if is_run(path) else [recipe.teacher]
    networks = [load(where) for where in places]
    same = (dataset.classes, dataset.mean, dataset.std, recipe.seen(dataset.size))
    for about in (net.about for net in networks):
        if about is None or (about.classes, about.mean, about.std, about.size) != same:
            reason = f"teacher = {recipe.teacher} has other classes, normalisation or image size than this training"
            raise UserError(f"{reason}; give one that was trained on {dataset.name} from the same start")
    return Teacher(networks)


def taught(mix: Mix, teacher: nn.Module, weight: float) -> Tensor:
    """Return soft targets (M, N, K): the labels, and a share `weight` of what the teacher predicts for each input."""
    with torch.no_grad():
        logits_RK = teacher(mix.images.flatten(0, 1)).float()
    predicted = logits_RK.softmax(-1).unflatten(0, mix.images.shape[:2])
    targets = mix.targets
    if targets.dim() == 2:
        targets = F.one_hot(targets, predicted.shape[-1]).float()
    return torch.lerp(targets, predicted, weight)
