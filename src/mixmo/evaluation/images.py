"""Labelled images to evaluate on: the test images of a data set, or image files, in batches as a model reads them."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from mixmo import data
from mixmo.data.folder import PREFIX, in_class_folders, in_csv
from mixmo.data.types import Dataset, Split
from mixmo.evaluation.models import Model
from mixmo.inference.preparation import Read, read_images
from mixmo.runs.directory import Run, is_run
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work
from mixmo.utils.text import printable


@dataclass(frozen=True)
class SplitImages:
    """The images of a split, in memory or streamed."""

    split: Split
    classes: tuple[str, ...] | None = None  # None: the labels index the model's classes
    order: Tensor | None = None  # of the images; None: their own
    prepared: bool = False  # for the model already

    def __len__(self) -> int:
        return len(self.split.labels)

    def batches(self, model: Model, count: int, work: Work) -> Iterator[Split]:
        """Yield `count` images at a time, prepared for the model, with labels that index its classes."""
        number = None
        if self.classes is not None and (known := model.about.classes) is not None:
            number = torch.tensor([known.index(label) for label in self.classes], device=self.split.labels.device)
        for part in self._batches(count):
            images = part.resident.to(model.device)
            labels = part.labels if number is None else number[part.labels]
            yield Split(images if self.prepared else model.prepare(images), labels)
            work.advance(len(labels))

    def _batches(self, count: int) -> Iterator[Split]:
        images, labels = self.split
        if self.order is None:
            return self.split.batches(count)
        if isinstance(images, Tensor):  # gathered batch by batch: a shuffled copy would take as much memory again
            return (Split(images[part], labels[part]) for part in self.order.split(count))
        return Split(images[self.order], labels[self.order]).batches(count)

    def shuffled(self) -> "SplitImages":
        """Return the same images in a random order, the same at each call."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        return replace(self, order=order.to(self.split.labels.device))


class FileImages:
    """Image files in a folder of class folders, or listed in a CSV of path,label."""

    def __init__(self, where: Path) -> None:
        self.where, self.samples = where, in_class_folders(where) if where.is_dir() else in_csv(where)
        self.skipped: set[str] = set()  # reported as unreadable, once

    def __len__(self) -> int:
        return len(self.samples)

    def batches(self, model: Model, count: int, work: Work) -> Iterator[Split]:
        """Yield `count` readable images at a time, as `SplitImages.batches` does."""
        classes = model.about.classes
        if classes is None:
            raise UserError(f"{model.path} does not name its classes; save it with about=mixmo.About(..., classes=...)")
        _check_known(model, {sample.label for sample in self.samples}, str(self.where))
        label = {sample.path: classes.index(sample.label) for sample in self.samples}
        readable = 0
        for read in read_files([sample.path for sample in self.samples], model, count, work, self.skipped):
            readable += len(read.paths)
            if read.paths:
                yield Split(read.images, torch.tensor([label[path] for path in read.paths]))
        if not readable:
            raise UserError(f"none of the {len(self)} images of {self.where} can be read; check the files")

    def in_memory(self, model: Model) -> SplitImages:
        """Read them all, prepared for the model, on its device."""
        channels, height, width = model.about.size
        images = torch.empty(len(self), height, width, channels, dtype=torch.uint8, device=model.device)
        labels = torch.empty(len(self), dtype=torch.long, device=model.device)
        count = 0
        with Work("reading images", len(self)) as work:
            for part in self.batches(model, model.batch, work):
                images[count : count + len(part.labels)] = part.resident
                labels[count : count + len(part.labels)] = part.labels
                count += len(part.labels)
        return SplitImages(Split(images[:count], labels[:count]), prepared=True)


LabelledImages = SplitImages | FileImages


def read_files(paths: Sequence[str], model: Model, count: int, work: Work, skipped: set[str]) -> Iterator[Read]:
    """Yield image files in batches prepared for the model; report the unreadable ones that are not yet in `skipped`."""
    for read in read_images(paths, model.about, count):
        for path, reason in read.failed:
            if path not in skipped:
                print(printable(f"skipped {path}: {reason}"), file=sys.stderr)
        skipped.update(path for path, _ in read.failed)
        yield read
        work.advance(len(read.paths) + len(read.failed))


def dataset_images(
    model: Model, name: str | None, root: Path | None, device: torch.device | str = "cpu"
) -> SplitImages:
    """Load the test images of a data set, by default of the one that the model was trained on."""
    own, name = name is None, name or model.trained_on
    dataset = data.load(name, root, device, train=False)
    if own and is_run(model.path) and dataset.classes != model.about.classes:  # its labels mean something else now
        raise UserError(f"the classes of {name} have changed since {model.path} was trained on it; restore them")
    if own and is_run(model.path):
        warn_of_changes(Run.open(model.path), dataset)
    _check_known(model, set(dataset.classes), name)
    return SplitImages(dataset.test, dataset.classes)


def warn_of_changes(run: Run, dataset: Dataset) -> None:
    """Warn if a run was tested on another number of images."""
    before, now = run.read_dataset().get("images"), len(dataset.test.labels)
    if isinstance(before, list) and before[1:] and before[1] != now:
        changed = f"{dataset.name} had {before[1]} test images when {run.path} was trained, and has {now} now"
        risk = "; some of these may have been training images" * dataset.name.startswith(PREFIX)
        warnings.warn(changed + risk, stacklevel=3)


def labelled_images(model: Model, on: str | None, root: Path | None) -> LabelledImages:
    """Open what `--on` names: a data set (its test images), a folder of class folders or a CSV of path,label."""
    return dataset_images(model, on, root) if on is None or is_dataset(on) else FileImages(Path(on))


def is_dataset(on: str) -> bool:
    """Whether this names a data set; else it is a path that exists."""
    if on.startswith(PREFIX) or (on in data.DATASETS and not Path(on).exists()):
        return True
    if not Path(on).exists():
        raise UserError(f"{on} is not a folder, CSV of path,label or data set ({', '.join(data.DATASETS)}); give one")
    return False


def _check_known(model: Model, labels: set[str], where: str) -> None:
    if unknown := sorted(labels - set(model.about.classes or labels)):
        raise UserError(f"{where} has classes that the model does not know: {', '.join(unknown[:5])}; remove them")
