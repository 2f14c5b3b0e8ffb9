"""A trained network from wherever it is: a run directory, a saved folder, this package, the Hub."""

import warnings
from pathlib import Path
from typing import Any

from torch import nn

from mixmo.calibration.conformal import fewest
from mixmo.calibration.posthoc import Calibration, calibrate
from mixmo.hub.folder import check_about, from_pretrained
from mixmo.models import Ensemble
from mixmo.models.metadata import About
from mixmo.runs.directory import SCORES, Run, is_run
from mixmo.runs.network import load_network_and_step
from mixmo.storage.weights import AGAIN, index_path, load_tensors
from mixmo.utils.errors import UserError, check_path

MODEL = "run directory, saved folder, shipped network (`mixmo list shipped`), or OWNER/NAME on the Hub"
FEWEST = fewest(0.9)  # images held out that sets of the usual level can be fitted to


def load(where: Path | str, which: str = "last", model: nn.Module | None = None) -> Ensemble:
    """The network of a run directory, a saved folder, a shipped name or a name on the Hub: on the CPU, in eval mode.

    A path that exists goes before a shipped name (`mixmo.shipped()`), and this before the Hub. The network's attribute
    `about` has the names of the classes, how images are prepared, the scores, and a calibration: as saved, or fitted to
    the validation images of the run, if it held some out. `which` is "last" or "best", for runs; of one that has not
    ended, the newest checkpoint or the best weights so far, without a calibration, and a warning says of which step.
    """
    path = check_path("where", where)
    if not is_run(path):
        if which != "last":
            raise UserError(f"{where} is no run directory and has no {which} epoch, only its weights; leave that out")
        return from_pretrained(where, model)
    run = Run.open(path)
    if run.recipe.networks > 1:
        raise UserError(
            f"{where} holds {run.recipe.networks} networks; load each of its folders 0, 1, ... and give them to "
            "mixmo.predict in a list"
        )
    net, step = load_network_and_step(run, which)
    about = about_run(run, which, step)
    try:
        check_about(net, about)
    except UserError as error:
        raise UserError(f"{run.path / 'dataset.json'}: {error}") from error
    net.about = about
    return net


def about_run(run: Run, which: str, step: int | None) -> About:
    """What a run says of its network; before the run has ended, of that of a step."""
    dataset = run.read_dataset()
    if step is None:
        scores = run.read_scores()[which]["ensemble"]
    else:
        scored = next((line for line in run.read_metrics() if line.get("step") == step), {})
        scores = scored.get("test", {}).get("ensemble", {})
    try:
        about = About.from_dict(
            {
                **{key: dataset[key] for key in ("size", "mean", "std", "classes")},
                "resize": dataset.get("resize"),
                "dataset": dataset["name"],
                "scores": {key: scores[key] for key in SCORES if key in scores},
            }
        )
    except UserError as error:
        raise UserError(f"{run.path / 'dataset.json'}: {error}") from error
    path = run.path / f"logits-{which}.safetensors"
    if run.recipe.validation < FEWEST or step is not None:
        return about
    if not path.is_file() and not index_path(path).is_file():  # it may have been left out of a copy, being large
        warnings.warn(
            f"{path} is missing, so the probabilities are not calibrated; copy it too to have them so", stacklevel=3
        )
        return about
    return about.calibrated(validation_calibration(run, which))


def validation_calibration(run: Run, which: str, **settings: Any) -> Calibration:
    """Fitted to the images that the run held out, never to the test set."""
    path = run.path / f"logits-{which}.safetensors"
    tensors = load_tensors(path)
    if not {"validation_logits", "validation_labels"} <= tensors.keys():
        raise UserError(f"{path} lacks the answers to the images held out; {AGAIN}")
    return calibrate(tensors["validation_logits"], tensors["validation_labels"], **settings)
