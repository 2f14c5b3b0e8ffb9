"""What it costs and gains to show a network 1, 2, ... M different images a pass: accuracy and speed, side by side."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mixmo.data.types import Dataset, Split
from mixmo.evaluation.run_scores import stack
from mixmo.evaluation.saved_models import Model, is_dataset, known_dataset, labelled_files, numbered, open_model
from mixmo.inference.predict import check_multiplex
from mixmo.metrics.logits import LabelledLogits
from mixmo.metrics.report import Scores, evaluate, plain
from mixmo.models import Network, multiply_adds
from mixmo.runs.directory import is_run
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work, track


class MultiplexRow(NamedTuple):
    """One number of images a pass."""

    images_per_pass: int
    members_per_image: float
    multiply_adds: float | None  # an image; None where they are not known
    images_per_second: float
    scores: Scores

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: the scores beside the costs."""
        costs = self._asdict()
        scores = costs.pop("scores")
        return costs | plain(scores)


class MultiplexScores(NamedTuple):
    """What `score_multiplexed` found."""

    which: str | None  # epoch of the runs; None where none is a run
    images: int
    device: str
    rows: list[MultiplexRow]  # 1, 2, ... M images a pass

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, ready for JSON."""
        return self._asdict() | {"rows": [row.to_dict() for row in self.rows]}


def score_multiplexed(
    paths: Sequence[Path], which: str, device: torch.device, root: Path | None = None, on: str | None = None
) -> MultiplexScores:
    """From the weights and the test set of what they were trained on; the networks at `paths` are one ensemble.

    Or from labelled images `on`, as in `score_models`.

    In a random order: neighbours in a file are often of one class, and would share their passes. Every row has passes
    of as many samples; its speed is that of the fastest of several repeats.
    """
    models = [open_model(path, which, device) for path in paths]
    members = models[0].nets[0].members
    for model in models:
        if _kind(model, on) != _kind(models[0], on):
            raise UserError(
                f"{model.path} has another data set, images of another size, other classes or another number of "
                f"members than {paths[0]}, and cannot be multiplexed with it; give it alone"
            )
        check_multiplex(model.nets[0], members)
    ready = on is not None and not is_dataset(on)
    name = models[0].trained_on if on is None else on
    dataset = _files(models[0], name) if ready else known_dataset(models[0], name, root, device)
    order = torch.randperm(len(dataset.test.labels), generator=torch.Generator().manual_seed(0)).to(device)
    test = Split(dataset.test.images[order], dataset.test.labels[order])
    cost, rows = _cost(models), []

    def predict(count: int) -> LabelledLogits:
        with Work("predicting images", len(models) * len(test.labels)) as work:
            parts = [model.answers(test, work, count, ready) for model in models]
        logits_MNK, labels_N = stack(parts, paths)
        return LabelledLogits(logits_MNK.cpu(), labels_N.cpu())  # which waits for the device

    for count in track(range(1, members + 1), "measuring each number of images a pass"):
        answers, seconds = _timed(partial(predict, count))
        logits_MNK, labels_N = numbered(models[0], dataset, answers)
        rows.append(
            MultiplexRow(
                images_per_pass=count,
                members_per_image=members / count,
                multiply_adds=None if cost is None else cost / count,
                images_per_second=len(labels_N) / seconds,
                scores=evaluate(logits_MNK, labels_N).ensemble,
            )
        )
    return MultiplexScores(which if any(map(is_run, paths)) else None, len(labels_N), device.type, rows)


def _kind(model: Model, on: str | None) -> tuple[object, ...]:
    about = model.about
    seen = (about.size, about.resize) if on else (model.trained_on,)
    return *seen, about.classes, model.nets[0].members


def _files(model: Model, where: str) -> Dataset:
    """The images in a folder of class folders, or in a CSV of path,label, in memory and as the model sees them."""
    parts, about = list(labelled_files(model, Path(where), "reading")), model.about
    images, labels = torch.cat([part.resident for part in parts]), torch.cat([part.labels for part in parts])
    test = Split(images.to(model.device), labels.to(model.device))
    return Dataset(where, Split(images[:0], labels[:0]), test, about.classes or (), about.mean, about.std)


def _cost(models: Sequence[Model]) -> int | None:
    """Multiply-adds of one image given to all members; not known of a wrapped model, whose layers may be any."""
    nets = [(net, model.about.size) for model in models for net in model.nets]
    counted = [multiply_adds(net, size) for net, size in nets if isinstance(net, Network)]
    return sum(counted) if len(counted) == len(nets) else None


def _timed(call: Callable[[], LabelledLogits]) -> tuple[LabelledLogits, float]:
    """What the call gives, and the seconds that it takes at best, of two to five calls."""
    times: list[float] = []
    while len(times) < 2 or (len(times) < 5 and sum(times) < 10):
        began = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - began)
    return result, min(times)
