"""How models fare on images unlike those they were trained on: corrupted ones, and ones of another data set.

Each path is that of one network, as in `mixmo.load`; N are one ensemble of all their members, as everywhere. Only the
weights are needed, and for the clean test set the stored logits of a run, or its images; one corruption of one severity
is in memory at a time.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mixmo import data
from mixmo.augment.basic import fit
from mixmo.data import folder as folders
from mixmo.data.catalog import where
from mixmo.data.corrupted import COMMON, Cell, corrupted
from mixmo.data.types import Split
from mixmo.evaluation.run_scores import run_answers, stack
from mixmo.evaluation.saved_models import Model, check_same_classes, dataset_answers, labelled_answers, open_model
from mixmo.metrics import DETECTORS, METRICS, aupr, auroc, fpr95
from mixmo.metrics.logits import LabelledLogits
from mixmo.metrics.report import json_ready
from mixmo.runs.directory import Run, is_run
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work


class BriefScores(NamedTuple):
    """Of an ensemble, without temperature, as in the paper's table."""

    top1: float
    top5: float
    nll: float


class CorruptionScores(NamedTuple):
    """What `score_corruptions` found."""

    folder: str
    which: str | None  # epoch of the runs; None where none is a run
    images: int  # of one severity
    clean: BriefScores
    pooled: BriefScores
    mce: float | None
    corruptions: dict[str, dict[int, BriefScores]]  # name -> severity -> scores

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts and numbers, ready for JSON."""
        return {name: json_ready(value) for name, value in self._asdict().items()}


class Detection(NamedTuple):
    """How well one detector tells images from outside, the positives."""

    auroc: float
    aupr: float
    fpr95: float


class OodScores(NamedTuple):
    """What `score_ood` found."""

    inside: str  # data sets
    outside: str
    which: str | None  # epoch of the runs; None where none is a run
    inside_images: int
    outside_images: int
    detectors: dict[str, Detection]

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts and numbers, ready for JSON."""
        return {name: json_ready(value) for name, value in self._asdict().items()}


def own_answers(model: Model, which: str, source: str, root: Path | None) -> LabelledLogits:
    """To the test images of what it was trained on: for a run as stored, if `source` says so, else predicted.

    By the weights that were read, whatever a training that goes on has written since.
    """
    if model.stored and source == "logits":
        return Run.open(model.path).read_logits(which)
    if is_run(model.path):
        return run_answers(Run.open(model.path), model.nets[0], model.device, root)
    return dataset_answers(model, model.trained_on, root)


def score_corruptions(paths: Sequence[Path], folder: Path, which: str, device: torch.device) -> CorruptionScores:
    """Top1, Top5 and NLL of the ensemble on every corruption and severity in `folder`, in the layout of CIFAR-C.

    `pooled`: over all images of all corruptions and severities, as the paper (19 x 5). `mce`: the mean error, 1 - Top1,
    over the 15 common corruptions, unnormalised as is usual on CIFAR; the mCE that divides by AlexNet's errors is
    ImageNet-C's. It is None if one of the 15 is not in the folder.
    """
    *_, scores = corruptions_so_far(paths, folder, which, device, None)
    return scores


def corruptions_so_far(
    paths: Sequence[Path], folder: Path, which: str, device: torch.device, root: Path | None
) -> Iterator[CorruptionScores]:
    """What `score_corruptions` gives, after each corruption: over those that were scored."""
    cells = corrupted(folder)
    models = [open_model(path, which, device) for path in paths]
    clean = stack([own_answers(model, which, "logits", root) for model in models], paths)
    for model in models:
        _check_fit(model, cells[0], folder, clean.labels)
    each: dict[str, dict[int, BriefScores]] = {}
    with Work(f"scoring images of {folder.name}", len(models) * len(cells) * len(clean.labels)) as work:
        for cell in cells:
            answers = stack([model.answers(cell.split, work) for model in models], paths)
            each.setdefault(cell.name, {})[cell.severity] = score(*answers)
            if cell.severity < cells[-1].severity:
                continue
            common = [scores for name in each if name in COMMON for scores in each[name].values()]
            complete = set(COMMON) <= set(each)
            yield CorruptionScores(
                folder=str(folder),
                which=which if any(map(is_run, paths)) else None,
                images=len(clean.labels),
                clean=score(*clean),
                pooled=mean([s for name in each for s in each[name].values()]),  # all cells have as many images
                mce=1 - mean(common).top1 if complete else None,
                corruptions=dict(each),
            )


def _check_fit(model: Model, cell: Cell, folder: Path, labels_N: Tensor) -> None:
    channels, height, width = model.about.size
    side, shape = model.about.resize or height, cell.split.resident.shape[1:]
    if is_run(model.path) and shape != (side, side, channels):  # a saved network may see its images enlarged
        size = "x".join(map(str, shape))
        raise UserError(
            f"{model.path} was trained on images of {height}x{width}x{channels} and {folder} holds {size}; "
            "give the corrupted images of its own data set"
        )
    if not torch.equal(cell.labels, labels_N):
        raise UserError(
            f"{folder} does not hold the test set of {model.path}, {model.trained_on}: its labels differ; "
            "give the corrupted images of that data set"
        )


def score(logits_MNK: Tensor, labels_N: Tensor) -> BriefScores:
    """Of the mean of the members' logits."""
    mean_NK = logits_MNK.double().mean(0)
    return BriefScores(*(METRICS[name](mean_NK, labels_N).item() for name in BriefScores._fields))


def mean(scores: Collection[BriefScores]) -> BriefScores:
    return BriefScores(*(sum(column) / len(scores) for column in zip(*scores, strict=True)))


def score_ood(
    paths: Sequence[Path],
    name: str,
    which: str,
    device: torch.device,
    root: Path | None = None,
    source: str = "logits",
    on: str | None = None,
) -> OodScores:
    """How well each detector tells the test images of data set `name` from the models' own: AUROC, AUPR, FPR95.

    Their own are the test images of what they were trained on, or the labelled ones `on`, as in `score_models`.

    The foreign images are the positives. They are brought to the size and the channels of the models' own images, cut
    like them where the middle alone is seen, and normalised like them, so that nothing of this gives them away.
    """
    models = [open_model(path, which, device) for path in paths]
    inside = models[0].trained_on if on is None else on
    if folders.same(name, inside, where(root)):
        was = f"what {paths[0]} was trained on" if on is None else "what --on names"
        raise UserError(f"--ood {name} is {was}; give another data set")
    if on is not None:
        check_same_classes(models)
    foreign = data.load(name, root, train=False).test
    own = [
        own_answers(model, which, source, root) if on is None else labelled_answers(model, on, root) for model in models
    ]
    inside_MNK, labels_N = stack(own, paths)
    with Work(f"predicting images of {name}", len(models) * len(foreign.labels)) as work:
        outside_MNK = torch.cat([_foreign_logits(model, foreign, work) for model in models])
    detectors = {}
    for detector in DETECTORS:
        pair = DETECTORS[detector](inside_MNK), DETECTORS[detector](outside_MNK)
        detectors[detector] = Detection(*(measure(*pair).item() for measure in (auroc, aupr, fpr95)))
    return OodScores(
        inside=inside,
        outside=name,
        which=which if any(map(is_run, paths)) else None,
        inside_images=len(labels_N),
        outside_images=outside_MNK.shape[1],
        detectors=detectors,
    )


def _foreign_logits(model: Model, split: Split, work: Work) -> Tensor:
    parts = []
    for part in split.batches(500):
        images = part.resident.to(model.device)
        seen = fit(images, *model.about.size) if model.about.resize is None else model.prepared(images)
        parts.append(model(seen).logits.cpu())
        work.advance(len(part.labels))
    return torch.cat(parts, 1)
