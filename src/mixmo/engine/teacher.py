"""Distillation: the predictions of trained networks as part of the targets."""

import hashlib
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixmo.data.types import Dataset
from mixmo.hub.loading import load
from mixmo.mixing.types import Mix
from mixmo.recipes.schema import Recipe
from mixmo.runs.directory import Run, is_run
from mixmo.utils.errors import UserError, check_path


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
    path = check_path("teacher", recipe.teacher)
    # A folder that is missing must not be looked for on the Hub.
    places = [run.path for run in Run.open(path).open_networks()] if is_run(path) else [recipe.teacher]
    networks = [load(where) for where in places]
    same = (dataset.classes, dataset.mean, dataset.std, recipe.seen(dataset.size))
    for about in (net.about for net in networks):
        if about is None or (about.classes, about.mean, about.std, about.size) != same:
            reason = f"teacher = {recipe.teacher} has other classes, normalisation or image size than this training"
            raise UserError(f"{reason}; give one that was trained on {dataset.name} from the same start")
    return Teacher(networks)


def check_teacher(teacher: Teacher, before: str | None, recipe: Recipe, run: Run) -> str:
    """Return the checksum of a teacher; raise an error if it differs from that `before`: later steps would differ."""
    total = hashlib.sha256()
    for tensor in teacher.state_dict().values():
        total.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    if before not in (None, total.hexdigest()):
        changed = f"teacher = {recipe.teacher} has changed since the training in {run.path} began"
        raise UserError(f"{changed}; restore it, or give another --out")
    return total.hexdigest()


def taught(mix: Mix, teacher: nn.Module, weight: float) -> Tensor:
    """Return soft targets (M, N, K): the labels, and a share `weight` of what the teacher predicts for each input."""
    with torch.no_grad():
        logits_RK = teacher(mix.images.flatten(0, 1)).float()
    predicted = logits_RK.softmax(-1).unflatten(0, mix.images.shape[:2])
    targets = mix.targets
    if targets.dim() == 2:
        targets = F.one_hot(targets, predicted.shape[-1]).float()
    return torch.lerp(targets, predicted, weight)
