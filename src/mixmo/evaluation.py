"""Scores of finished runs: of one, or of several as one ensemble of N x M predictions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixmo import data
from mixmo.errors import UserError
from mixmo.metrics.report import evaluate
from mixmo.models import Network
from mixmo.predict import predict_logits
from mixmo.runs import WHICH, Run, load_tensors


def load_network(run: Run, which: str = "last") -> Network:
    """The trained network of a run, on the CPU, in eval mode."""
    about = run.json("dataset.json")
    net = run.recipe.network(len(about["classes"]), about["size"][0])
    try:
        net.load_state_dict(load_tensors(run.path / f"{which}.safetensors"))
    except RuntimeError as error:
        raise UserError(
            f"{run.path / which}.safetensors does not fit the recipe beside it; restore either one"
        ) from error
    return net.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def run_logits(run: Run, which: str, source: str, device: torch.device, root: Path | None) -> tuple[Tensor, Tensor]:
    """Every head's test logits and the labels: as stored, or computed again from the weights."""
    if source == "logits":
        return run.logits(which)
    dataset = data.load(run.recipe.dataset, root, device)
    net = load_network(run, which).to(device)
    return predict_logits(net, dataset, dataset.test, size=run.recipe.size).cpu(), dataset.test.labels.cpu()


def score_runs(
    runs: Sequence[Run], source: str = "logits", device: torch.device | None = None, root: Path | None = None
) -> dict[str, Any]:
    """What `mixmo eval` prints: last and best epoch, ensemble and members, diversity, cost."""
    runs = [Run(path) for run in runs for path in run.networks()]
    stored = [run.json("scores.json") for run in runs]
    scores: dict[str, Any] = {
        "runs": [str(run.path) for run in runs],
        "parameters": sum(s["parameters"] for s in stored),
        "multiply_adds": sum(s["multiply_adds"] for s in stored),
        "best_by": stored[0]["best_by"],
    }
    if len(runs) == 1:
        scores["best_epoch"] = stored[0]["best_epoch"]
    for which in WHICH:
        logits, labels = stack(
            [run_logits(run, which, source, device or torch.device("cpu"), root) for run in runs], runs
        )
        scores[which] = evaluate(logits, labels).to_dict()
    return scores


def stack(parts: Sequence[tuple[Tensor, Tensor]], runs: Sequence[Run]) -> tuple[Tensor, Tensor]:
    """The members of all runs as those of one ensemble. Runs over different test sets are refused."""
    labels = parts[0][1]
    for run, (logits, other) in zip(runs, parts, strict=True):
        if not torch.equal(other, labels) or logits.shape[1:] != parts[0][0].shape[1:]:
            raise UserError(f"{run.path} was tested on other data than {runs[0].path}; an ensemble needs one test set")
    return torch.cat([logits for logits, _ in parts]), labels
