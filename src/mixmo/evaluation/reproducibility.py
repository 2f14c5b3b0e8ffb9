"""Compare a run with another training of its recipe: bit for bit, and by a paired test of the test scores."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mixmo.metrics.logits import LabelledLogits
from mixmo.runs.directory import WHICH, Run
from mixmo.storage.weights import load_tensors
from mixmo.utils.errors import UserError

ERRORS = 4.0  # standard errors: two equal trainings differ by more once in 16,000
LEAST = 1e-3  # difference that is none: rounding alone may have the same sign on all images
TIMES = ("seconds", "evaluation_seconds")


class ScoreDifference(NamedTuple):
    """A score of the ensemble on the test set, of the last epoch, in both runs."""

    score: str
    first: float
    second: float
    tolerance: float

    @property
    def within(self) -> bool:
        return abs(self.second - self.first) <= self.tolerance


class RunDifference(NamedTuple):
    """What differs between two trainings of one recipe."""

    environment: dict[str, tuple[Any, Any]]
    files: list[str]  # that are not equal bit for bit; the times in metrics.jsonl may differ
    scores: list[ScoreDifference]

    @property
    def exact(self) -> bool:
        """Whether the runs must be identical: on a CPU in the same environment."""
        return not self.environment

    @property
    def reproduced(self) -> bool:
        """Whether they are identical, or, where they need not be, within the tolerance."""
        return not self.files or (not self.exact and all(score.within for score in self.scores))


def compare_trainings(first: Run, second: Run) -> RunDifference:
    """Compare two finished runs of one recipe.

    On a CPU with the same versions, all weights, logits and metrics must be equal. Elsewhere rounding makes two
    trainings as different as two seeds, so their scores are compared image by image: for n test images with
    differences d, |mean(d)| may be 4 std(d) / sqrt(n), and 0.001 in any case.

    Raises:
        UserError: If a run has not ended, or the test labels differ.
    """
    for run in (first, second):
        if not run.is_finished():
            raise UserError(f"{run.path} is unfinished; complete it with `mixmo train --resume --out {run.path}`")
    files = []
    for one, two in zip(first.open_networks(), second.open_networks(), strict=True):
        files += [str((two.path / name).relative_to(second.path)) for name in _differing(one, two)]
    return RunDifference(_environment(first, second), files, _scores(first.read_logits(), second.read_logits()))


def _environment(first: Run, second: Run) -> dict[str, tuple[Any, Any]]:
    """Return how the environments differ. Runs on a GPU always differ: their kernels are chosen by timing."""
    one, two = (run.open_networks()[0].read_environment() for run in (first, second))
    differing = {key: (one.get(key), two.get(key)) for key in {**one, **two} if one.get(key) != two.get(key)}
    if not differing and one["device"] != "cpu":
        differing["kernels"] = ("chosen by timing", "chosen by timing")
    return differing


def _differing(first: Run, second: Run) -> list[str]:
    """Return the names of the files of results that are not equal."""
    names = [f"{kind}{which}.safetensors" for kind in ("", "logits-") for which in WHICH]
    differing = [name for name in names if not _equal(*(load_tensors(run.path / name) for run in (first, second)))]
    lines = [
        [{key: value for key, value in line.items() if key not in TIMES} for line in run.read_metrics()]
        for run in (first, second)
    ]
    return differing if lines[0] == lines[1] else [*differing, "metrics.jsonl"]


def _equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def _scores(first: LabelledLogits, second: LabelledLogits) -> list[ScoreDifference]:
    if not torch.equal(first.labels, second.labels):
        raise UserError("the two runs were evaluated on different test images; give the --data of the first run")
    kinds: Sequence[tuple[str, Callable[[Tensor, Tensor], Tensor]]] = (
        ("Top1", lambda logits_NK, labels_N: (logits_NK.argmax(1) == labels_N).double()),
        ("NLL", lambda logits_NK, labels_N: cross_entropy(logits_NK, labels_N, reduction="none")),
    )
    found = []
    for name, score in kinds:
        one_N, two_N = (score(run.logits.double().mean(0), run.labels) for run in (first, second))
        error = (two_N - one_N).std().item() / len(one_N) ** 0.5
        found.append(ScoreDifference(name, one_N.mean().item(), two_N.mean().item(), max(ERRORS * error, LEAST)))
    return found
