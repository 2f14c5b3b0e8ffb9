"""The network of a run: trained to the end, or as it is by now."""

import warnings

import torch

from mixmo.models import Network
from mixmo.runs.checkpoint import Checkpoints
from mixmo.runs.directory import WHICH, Run
from mixmo.storage.weights import fill
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import unknown


class Unfinished(UserWarning):
    """The training of a run has not ended: what is said of it is said of weights that it will leave behind."""


def load_network(run: Run, which: str = "last") -> Network:
    """The trained network of a run, on the CPU, in eval mode; of one that has not ended, as it is by now."""
    return load_so_far(run, which)[0]


@on_cpu
def load_so_far(run: Run, which: str) -> tuple[Network, int | None]:
    """The network of a run, and of which step it is if that has not ended. A warning says so."""
    if which not in WHICH:
        raise unknown("epoch", which, WHICH)
    about, recipe, step = run.json("dataset.json"), run.recipe, None
    net = recipe.network(len(about["classes"]), about["size"][0])
    if run.finished:
        fill(net, run.path / f"{which}.safetensors")
    else:
        step = Checkpoints(run.path / "checkpoints").fill(net, which, averaged=recipe.average > 0)
        when = "before any epoch was scored"
        if lines := [line for line in run.metrics() if line.get("step")]:  # not every epoch may have one
            when = f"after epoch {step * lines[-1]['epoch'] // lines[-1]['step']} of {recipe.epochs}"
        warnings.warn(
            f"the training of {run.path} has not ended; its {which} weights so far are those of step {step:,}, {when}",
            Unfinished,
            stacklevel=2,
        )
    return net.eval().to(memory_format=torch.channels_last), step  # type: ignore[call-overload]
