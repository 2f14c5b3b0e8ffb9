"""The network of a run: trained to the end, or at its newest checkpoint."""

import warnings
from pathlib import Path

import torch

from mixmo.models import Ensemble
from mixmo.recipes.schema import Recipe
from mixmo.runs.checkpoint import Checkpoints, unusable
from mixmo.runs.directory import WHICH, Run
from mixmo.storage.weights import check_shapes, load_weights, shapes, stored_shapes
from mixmo.surgery.hollow import check_backbone
from mixmo.surgery.libraries import LIBRARIES, make_fitting
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError, unknown


class Unfinished(UserWarning):
    """A run has not finished: its scores and predictions are those of intermediate weights."""


def load_network(run: Run, which: str = "last") -> Ensemble:
    """Return the network of a run on the CPU in eval mode; of an unfinished run, as in its newest checkpoint."""
    return load_network_and_step(run, which)[0]


@on_cpu
def load_network_and_step(run: Run, which: str) -> tuple[Ensemble, int | None]:
    """Return the network of a run and, with a warning if the run has not finished, the step that it is of."""
    if which not in WHICH:
        raise unknown("epoch", which, WHICH)
    dataset, recipe, step = run.read_dataset(), run.recipe, None
    classes, size = len(dataset["classes"]), tuple(dataset["size"])
    finished, checkpoints = run.is_finished(), Checkpoints(run.path / "checkpoints")
    newest = checkpoints.latest()
    if not finished and newest is None:
        raise checkpoints.lacks()
    weights = run.path / f"{which}.safetensors" if newest is None or finished else newest / "weights.safetensors"
    _check_weights(recipe, classes, size, weights)
    net = recipe.network(classes, size)
    if finished:
        load_weights(net, weights)
    else:
        step = checkpoints.load_weights(net, which, averaged=recipe.average > 0)
        when = "before any epoch was scored"
        if lines := [line for line in run.read_metrics() if line.get("step")]:  # not every epoch may be scored
            when = f"after epoch {step * lines[-1]['epoch'] // lines[-1]['step']} of {recipe.epochs}"
        warnings.warn(
            f"the training of {run.path} has not ended; its {which} weights so far are those of step {step:,}, {when}",
            Unfinished,
            stacklevel=3,
        )
    return net.eval().to(memory_format=torch.channels_last), step  # type: ignore[call-overload]


def check_checkpoint(recipe: Recipe, classes: int, size: tuple[int, int, int], checkpoint: Path) -> None:
    """Raise an error for a checkpoint of another network, before memory is allocated."""
    try:
        _check_weights(recipe, classes, size, checkpoint / "weights.safetensors")
    except UserError as error:
        raise unusable(checkpoint, error) from error


def _check_weights(recipe: Recipe, classes: int, size: tuple[int, int, int], weights: Path) -> None:
    """Raise an error for weights of another network, before memory is allocated."""
    library, _, name = recipe.model.partition("/")
    if library in LIBRARIES:
        check_backbone(
            lambda: make_fitting(library, name, classes, size, recipe.drop_path)[0],
            recipe.members,
            size,
            stored_shapes(weights),
        )
    elif not recipe.is_backbone:
        with torch.device("meta"):
            check_shapes(shapes(recipe.network(classes, size)), weights)
