"""Load a trained network from a run directory, a saved folder, this package or the Hub."""

import warnings
from pathlib import Path
from typing import Any

from torch import nn

from mixmo.calibration.conformal import fewest_for_level
from mixmo.calibration.posthoc import Calibration, calibrate
from mixmo.hub.folder import from_pretrained
from mixmo.models import Ensemble
from mixmo.models.metadata import About
from mixmo.runs.contents import SCORES
from mixmo.runs.directory import Run, is_run
from mixmo.runs.network import load_network_and_step
from mixmo.storage.weights import AGAIN, is_stored, load_tensors
from mixmo.utils.errors import UserError, check_path

MODEL = "run directory, saved folder, shipped network (`mixmo list shipped`), or OWNER/NAME on the Hub"
FEWEST = fewest_for_level(0.9)  # held-out images that conformal sets of the usual level need


def load(where: Path | str, which: str = "last", model: nn.Module | None = None) -> Ensemble:
    """Load a trained network from a run directory, a saved folder, this package or the Hub.

    A path that exists takes precedence over a shipped name, and that over the Hub. For a run that has not ended, the
    newest checkpoint or the best weights so far are loaded, without calibration, and a warning names their step.

    Args:
        where: A run directory, a saved folder, a name of `mixmo.shipped()`, or OWNER/NAME on the Hub.
        which: "last" or "best" weights, for run directories.
        model: The bare backbone of a wrapped network that neither timm nor torchvision makes.

    Returns:
        The network, on the CPU and in eval mode. Its attribute `about` holds class names, how images are prepared,
        scores, and a calibration: as saved, or fitted on the validation images of the run, if it held some out.
    """
    path = check_path("where", where)
    if not is_run(path):
        if which != "last":
            raise UserError(
                f"which = '{which}', but {where} is not a run directory; a saved network has one epoch only"
            )
        return from_pretrained(where, model)
    run = Run.open(path)
    if run.recipe.networks > 1:
        raise UserError(f"{where} holds {run.recipe.networks} networks; take each of its folders {where}/0, ...")
    net, step = load_network_and_step(run, which)
    net.about = _metadata(run, which, step)
    held_out = run.recipe.held_out(run.read_dataset().get("images", [0])[0])  # earlier versions did not count them
    if step is None and 0 < held_out < FEWEST:
        few = f"{where} held out {held_out} images, and calibration needs {FEWEST}"
        warnings.warn(f"{few}: its probabilities are not calibrated; train with a larger --validation", stacklevel=2)
    if step is None and held_out >= FEWEST:
        path = _logits(run, which)
        if is_stored(path):
            net.about = net.about.calibrated(validation_calibration(run, which))
        else:  # large files may be left out of a copy
            warnings.warn(f"{path} is missing, so the probabilities are not calibrated; copy it too", stacklevel=2)
    return net


def validation_calibration(run: Run, which: str, **settings: Any) -> Calibration:
    """Fit a calibration on the images that the run held out, never on the test set."""
    path = _logits(run, which)
    tensors = load_tensors(path)
    if not {"validation_logits", "validation_labels"} <= tensors.keys():
        raise UserError(f"{path} lacks the logits of the validation images; {AGAIN}")
    return calibrate(tensors["validation_logits"], tensors["validation_labels"], **settings)


def _metadata(run: Run, which: str, step: int | None) -> About:
    """Return the metadata with the scores at the end of the run, or at a step before."""
    if step is None:
        scores = run.read_scores()[which]["ensemble"]
    else:
        scored = next((line for line in run.read_metrics() if line.get("step") == step), {})
        scores = scored.get("test", {}).get("ensemble", {})
    dataset = run.read_dataset()
    known = {key: dataset[key] for key in ("size", "mean", "std", "classes")}
    kept = {key: scores[key] for key in SCORES if key in scores}
    return About.from_dict({**known, "resize": dataset.get("resize"), "dataset": dataset["name"], "scores": kept})


def _logits(run: Run, which: str) -> Path:
    return run.path / f"logits-{which}.safetensors"
