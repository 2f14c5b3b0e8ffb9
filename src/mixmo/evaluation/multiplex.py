"""Multiplexed inference: accuracy and speed with 1, 2, ... M different images per forward pass."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mixmo.evaluation.images import FileImages, dataset_images, is_dataset
from mixmo.evaluation.models import open_models
from mixmo.evaluation.pipeline import predict_images
from mixmo.inference.predict import check_multiplex
from mixmo.metrics.logits import LabelledLogits
from mixmo.metrics.report import Scores, evaluate, plain
from mixmo.models import multiply_adds
from mixmo.runs.directory import is_run
from mixmo.utils.errors import UserError
from mixmo.utils.progress import track


class MultiplexRow(NamedTuple):
    """One number of images per pass."""

    images_per_pass: int
    members_per_image: float
    multiply_adds: float  # per image
    images_per_second: float
    scores: Scores

    def to_dict(self) -> dict[str, Any]:
        """Return the costs and the scores in one dict, ready for JSON."""
        costs = self._asdict()
        scores = costs.pop("scores")
        return costs | plain(scores)


class MultiplexScores(NamedTuple):
    which: str | None  # epoch of the runs; None where none is a run
    images: int
    device: str
    rows: list[MultiplexRow]  # 1, 2, ... M images per pass

    def to_dict(self) -> dict[str, Any]:
        return self._asdict() | {"rows": [row.to_dict() for row in self.rows]}


def score_multiplexed(
    paths: Sequence[Path], which: str, device: torch.device, root: Path | None = None, on: str | None = None
) -> MultiplexScores:
    """Score multiplexed inference of an ensemble for every number of images per pass.

    Images come in a random order: neighbours in a file are often of one class, and would share their passes. Every row
    has batches of as many passes; its speed is that of the fastest of several repeats.
    """
    models = open_models(paths, which, device)
    kinds = [(model.net.members, model.about.size, model.about.resize) for model in models]
    for model, kind in zip(models, kinds, strict=True):
        if kind != kinds[0]:
            raise UserError(f"{model.path} has other members or image sizes than {models[0].path}; multiplex it alone")
        check_multiplex(model.net, model.net.members)
    if on is None or is_dataset(on):
        images = dataset_images(models[0], on, root, device).shuffled()
    else:
        images = FileImages(Path(on)).in_memory(models[0]).shuffled()
    members, rows = models[0].net.members, []
    cost = sum(multiply_adds(model.net, model.about.size) for model in models)  # of one image given to all members
    for count in track(range(1, members + 1), "measuring each number of images per pass"):
        (logits_MNK, labels_N), seconds = _timed(partial(predict_images, models, images, "predicting images", count))
        rows.append(
            MultiplexRow(
                images_per_pass=count,
                members_per_image=members / count,
                multiply_adds=cost / count,
                images_per_second=len(labels_N) / seconds,
                scores=evaluate(logits_MNK, labels_N).ensemble,
            )
        )
    return MultiplexScores(which if any(map(is_run, paths)) else None, len(labels_N), device.type, rows)


def _timed(call: Callable[[], LabelledLogits]) -> tuple[LabelledLogits, float]:
    """The result of a call, and the seconds of the fastest of two to five."""
    times: list[float] = []
    while len(times) < 2 or (len(times) < 5 and sum(times) < 10):
        began = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - began)
    return result, min(times)
