"""Scores on images unlike those of training: corrupted test images, and OOD detection of another data set."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mixmo import data
from mixmo.data import folder as folders
from mixmo.data.catalog import data_directory
from mixmo.data.corrupted import COMMON, corrupted
from mixmo.evaluation.images import SplitImages, labelled_images
from mixmo.evaluation.models import open_models
from mixmo.evaluation.pipeline import own_logits, predict_images
from mixmo.metrics import DETECTORS, METRICS, aupr, auroc, fpr95
from mixmo.metrics.report import json_ready
from mixmo.runs.directory import is_run
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work


class BriefScores(NamedTuple):
    """Of an ensemble, without temperature, as in the paper's table."""

    top1: float
    top5: float
    nll: float


class CorruptionScores(NamedTuple):
    folder: str
    which: str | None  # epoch of the runs; None where none is a run
    images: int  # of one severity
    clean: BriefScores
    pooled: BriefScores
    mce: float | None
    corruptions: dict[str, dict[int, BriefScores]]  # name -> severity -> scores

    def to_dict(self) -> dict[str, Any]:
        return dict(json_ready(self))


class Detection(NamedTuple):
    """OOD detection by one detector; images from outside are the positives."""

    auroc: float
    aupr: float
    fpr95: float


class OodScores(NamedTuple):
    inside: str  # data sets
    outside: str
    which: str | None  # epoch of the runs; None where none is a run
    inside_images: int
    outside_images: int
    detectors: dict[str, Detection]

    def to_dict(self) -> dict[str, Any]:
        return dict(json_ready(self))


def score_corruptions(paths: Sequence[Path], folder: Path, which: str, device: torch.device) -> CorruptionScores:
    """Score an ensemble on every corruption and severity in a folder with the layout of CIFAR-C.

    `pooled` is over all images of all corruptions and severities, as in the paper (19 x 5). `mce` is the mean error,
    1 - Top1, over the 15 common corruptions, unnormalised as is usual on CIFAR (the mCE that divides by AlexNet's
    errors is ImageNet-C's); None if one of the 15 is not in the folder.
    """
    *_, scores = corruptions_so_far(paths, folder, which, device, None)
    return scores


def corruptions_so_far(
    paths: Sequence[Path], folder: Path, which: str, device: torch.device, root: Path | None
) -> Iterator[CorruptionScores]:
    """Yield what `score_corruptions` returns after each corruption, over those scored so far."""
    cells = corrupted(folder)
    models = open_models(paths, which, device)
    clean = own_logits(models, which, "logits", root)
    if not torch.equal(cells[0].labels, clean.labels):
        raise UserError(f"the labels in {folder} differ from the test set of {paths[0]}; give its corrupted test set")
    each: dict[str, dict[int, BriefScores]] = {}
    with Work(f"scoring images of {folder.name}", len(models) * len(cells) * len(clean.labels)) as work:
        for cell in cells:
            logits = predict_images(models, SplitImages(cell.split), work=work)
            each.setdefault(cell.name, {})[cell.severity] = score(*logits)
            if cell.severity < cells[-1].severity:
                continue
            common = [scores for name in each if name in COMMON for scores in each[name].values()]
            yield CorruptionScores(
                folder=str(folder),
                which=which if any(map(is_run, paths)) else None,
                images=len(clean.labels),
                clean=score(*clean),
                pooled=mean([s for name in each for s in each[name].values()]),  # all cells have as many images
                mce=1 - mean(common).top1 if set(COMMON) <= set(each) else None,
                corruptions=dict(each),
            )


def score(logits_MNK: Tensor, labels_N: Tensor) -> BriefScores:
    """Score the mean of the members' logits."""
    mean_NK = logits_MNK.double().mean(0)
    return BriefScores(*(METRICS[name](mean_NK, labels_N).item() for name in BriefScores._fields))


def mean(scores: Collection[BriefScores]) -> BriefScores:
    """Average each score."""
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
    """Score OOD detection: how well each detector separates the test images of a data set from the models' own.

    The images from outside are the positives. They are resized, cropped, converted to the channels of the models' own
    images and normalised like them, so that nothing of this gives them away.
    """
    models = open_models(paths, which, device)
    inside = models[0].trained_on if on is None else on
    if folders.same(name, inside, data_directory(root)):
        was = f"what {paths[0]} was trained on" if on is None else "what --on names"
        raise UserError(f"--ood {name} is {was}; give another data set")
    outside = SplitImages(data.load(name, root, train=False).test)
    if on is None:
        inside_MNK, labels_N = own_logits(models, which, source, root)
    else:
        inside_MNK, labels_N = predict_images(models, labelled_images(models[0], on, root))
    outside_MNK, _ = predict_images(models, outside, f"predicting images of {name}")
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
