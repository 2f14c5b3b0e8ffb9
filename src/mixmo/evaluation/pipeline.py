"""One pipeline for every score: `open_models`, `labelled_images`, `predict_images`, then `mixmo.metrics.evaluate`."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from mixmo.evaluation.images import LabelledImages, dataset_images
from mixmo.evaluation.models import Model
from mixmo.metrics.logits import LabelledLogits
from mixmo.runs.directory import Run
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work


def predict_images(
    models: Sequence[Model],
    images: LabelledImages,
    doing: str = "scoring images",
    images_per_pass: int = 1,
    work: Work | None = None,
) -> LabelledLogits:
    """Predict labelled images with every model and stack the logits, on the CPU; count in `work`, if given."""
    known = {model.about.classes: model.path for model in models if model.about.classes is not None}
    if len(known) > 1:
        one, other, *_ = known.values()
        raise UserError(f"{other} knows other classes than {one}; an ensemble needs the same")
    with nullcontext(work) if work is not None else Work(doing, len(models) * len(images)) as counted:
        parts = [_predict(model, images, images_per_pass, counted) for model in models]
    return stack(parts, [model.path for model in models])


def _predict(model: Model, images: LabelledImages, images_per_pass: int, work: Work) -> LabelledLogits:
    batches = images.batches(model, model.batch * images_per_pass, work)
    parts = [LabelledLogits(model.logits(part.resident, images_per_pass), part.labels) for part in batches]
    logits_MNK, labels_N = LabelledLogits.joined(parts)
    return LabelledLogits(logits_MNK.cpu(), labels_N.cpu())


def own_logits(models: Sequence[Model], which: str, source: str, root: Path | None) -> LabelledLogits:
    """Return the stacked logits of the test set that each model was trained with.

    A finished run has them stored (`source` "logits"); other models, and `source` "weights", predict them. They are
    those of the opened weights, even if a training has written others since.
    """
    parts = [
        Run.open(model.path).read_logits(which)
        if model.stored and source == "logits"
        else predict_images([model], dataset_images(model, None, root, model.device), "predicting test images")
        for model in models
    ]
    return stack(parts, [model.path for model in models])


def stack(parts: Sequence[LabelledLogits], paths: Sequence[Path]) -> LabelledLogits:
    """Stack the members of all models as those of one ensemble, (sum of heads, N, K), if they share a test set."""
    first = parts[0]
    for path, part in zip(paths, parts, strict=True):
        if not torch.equal(part.labels, first.labels) or part.logits.shape[1:] != first.logits.shape[1:]:
            raise UserError(f"{path} was tested on other data than {paths[0]}; an ensemble needs one test set")
    return LabelledLogits(torch.cat([part.logits for part in parts]), first.labels)


def check_different(paths: Sequence[Path]) -> None:
    """Raise an error for a network given twice, which would count as two members."""
    resolved = [os.path.realpath(path) for path in paths]
    if twice := [path for path, real in zip(paths, resolved, strict=True) if resolved.count(real) > 1]:
        raise UserError(f"{twice[-1]} is given twice; an ensemble needs different runs")
