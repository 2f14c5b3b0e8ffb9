"""Use of the filters of a run's network: norms of its encoders, active filters of its core."""

import warnings
from typing import NamedTuple

from mixmo.evaluation.analysis.filters import activity, core_norms, encoder_norms
from mixmo.evaluation.analysis.summary import THRESHOLDS, channel_separation
from mixmo.models import Ensemble
from mixmo.reports.run_data import RunData
from mixmo.runs.directory import Run
from mixmo.runs.network import Unfinished, load_network
from mixmo.storage.weights import is_stored


class Filters(NamedTuple):
    encoders: list[list[float]]  # l1 norms, (encoders, channels)
    separation: float | None
    active: dict[float, float]  # share of active filters, mean over layers, by threshold


def measure_filters(data: RunData) -> Filters | None:
    """Measure the filters of a run; None, with a note in `data`, without its weights."""
    if data.recipe is None or data.networks:
        return None
    weights = data.path / f"{data.which}.safetensors"
    if not is_stored(weights) and (data.finished or not (data.path / "checkpoints").is_dir()):
        data.missing.append(f"{weights.name}: the file is missing, so encoders and filters cannot be measured")
        return None
    run = Run(data.path, data.recipe)
    return data.read("weights", lambda: measure(_load(run, data.which)))


def _load(run: Run, which: str) -> Ensemble:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Unfinished)  # the page shows the state
        return load_network(run, which)


def measure(net: Ensemble) -> Filters:
    norms = core_norms(net)
    active = {threshold: activity(norms, threshold).by_layer for threshold in THRESHOLDS}
    return Filters(encoder_norms(net).tolist(), channel_separation(net), active)
