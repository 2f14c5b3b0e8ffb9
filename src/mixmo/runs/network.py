"""The network of a run: trained to the end, or at its newest checkpoint."""

import warnings

import torch

from mixmo.models import Ensemble
from mixmo.runs.checkpoint import Checkpoints
from mixmo.runs.directory import WHICH, Run
from mixmo.storage.weights import load_weights
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import unknown


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
    net = recipe.network(len(dataset["classes"]), tuple(dataset["size"]))
    if run.is_finished():
        load_weights(net, run.path / f"{which}.safetensors")
    else:
        step = Checkpoints(run.path / "checkpoints").load_weights(net, which, averaged=recipe.average > 0)
        when = "before any epoch was scored"
        if lines := [line for line in run.read_metrics() if line.get("step")]:  # not every epoch may be scored
            when = f"after epoch {step * lines[-1]['epoch'] // lines[-1]['step']} of {recipe.epochs}"
        warnings.warn(
            f"the training of {run.path} has not ended; its {which} weights so far are those of step {step:,}, {when}",
            Unfinished,
            stacklevel=3,
        )
    return net.eval().to(memory_format=torch.channels_last), step  # type: ignore[call-overload]
