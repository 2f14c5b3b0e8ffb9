"""A model by its path, a network or the networks of a run, and what it answers to labelled images."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mixmo import data
from mixmo.augment.basic import centre, fit
from mixmo.calibration.posthoc import Calibration
from mixmo.data.folder import PREFIX, in_class_folders, in_csv
from mixmo.data.types import Dataset, Split
from mixmo.hub.loading import load
from mixmo.inference.predict import default_batch, predict
from mixmo.inference.prediction import Prediction
from mixmo.inference.preparation import Read, read_images
from mixmo.metrics.logits import LabelledLogits
from mixmo.models import Ensemble
from mixmo.models.metadata import About
from mixmo.runs.directory import Run, is_run
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work


class Model(NamedTuple):
    """What predicts: one network, or those of a run of several."""

    path: Path
    nets: list[Ensemble]
    about: About
    device: torch.device
    stored: bool  # whether its answers to its own test images are

    @property
    def batch(self) -> int:
        return default_batch(self.device, self.about.size[1] * self.about.size[2])

    @property
    def calibration(self) -> Calibration | None:
        """What was saved with it, or fitted to the validation images of its run."""
        return self.about.calibration if len(self.nets) == 1 else None

    @property
    def trained_on(self) -> str:
        """The name of its data set."""
        if self.about.dataset is None:
            raise UserError(
                f"{self.path} does not say what it was trained on; save it with about=mixmo.About(..., dataset=...), "
                "or give labelled images with --on"
            )
        return self.about.dataset

    def prepared(self, images_NHWC: Tensor) -> Tensor:
        """Images of any size as the network sees them: resized and cut like the test images of its training."""
        channels, height, width = self.about.size
        if self.about.resize is None and images_NHWC.shape[1:] == (height, width, channels):
            return images_NHWC
        if height != width:
            raise UserError(
                f"{self.path} sees {height} x {width} pixels, and images are cut to squares only; give tensors to "
                "mixmo.predict"
            )
        side = self.about.resize or height
        return centre(fit(images_NHWC, channels, side, side), height)

    def read(self, paths: Sequence[str], doing: str) -> Iterator[Read]:
        """Batches of files, with the progress and the time left on standard error, and the names of the unreadable."""
        with Work(f"{doing} images", len(paths)) as work:
            for read in read_images(paths, self.about, self.batch):
                for path, reason in read.failed:
                    print(f"skipped {path}: {reason}", file=sys.stderr)
                yield read
                work.advance(len(read.paths) + len(read.failed))

    def __call__(
        self, images_NHWC: Tensor, calibration: Calibration | None = None, images_per_pass: int = 1
    ) -> Prediction:
        batch = self.batch * images_per_pass  # as many passes
        return predict(
            self.nets, images_NHWC, images_per_pass=images_per_pass, calibration=calibration, batch_size=batch
        )

    def answers(self, split: Split, work: Work, images_per_pass: int = 1, ready: bool = False) -> LabelledLogits:
        """To images of any size, or `ready` as the network sees them, counted as a part of this work."""
        parts = []
        for part in split.batches(self.batch * images_per_pass):
            images = part.resident if ready else self.prepared(part.resident)
            parts.append(LabelledLogits(self(images, images_per_pass=images_per_pass).logits, part.labels))
            work.advance(len(part.labels))
        return LabelledLogits.joined(parts)


def networks(path: Path) -> list[Path]:
    """Where each network of a model is."""
    return [run.path for run in Run.open_each([path])] if is_run(path) else [path]


def open_model(path: Path, which: str, device: torch.device) -> Model:
    """The network or networks, on the device."""
    stored = is_run(path) and Run.open(path).is_finished()  # first: it may end while a checkpoint is read
    nets = [load(one, which).to(device) for one in networks(path)]
    about = nets[0].about
    if about is None:
        raise UserError(f"{path} does not say how its images are prepared; save it with about=mixmo.About(...)")
    return Model(path, nets, about, device, stored)


def labelled_files(model: Model, where: Path, doing: str) -> Iterator[Split]:
    """The images in a folder of class folders, or in a CSV of path,label, in batches, as the model sees and counts."""
    samples = in_class_folders(where) if where.is_dir() else in_csv(where)
    classes = model.about.classes
    if classes is None:
        raise UserError(f"{model.path} does not name its classes; save it with about=mixmo.About(..., classes=...)")
    check_known(model, {sample.label for sample in samples}, str(where))
    label = {sample.path: classes.index(sample.label) for sample in samples}
    none = True
    for read in model.read([sample.path for sample in samples], doing):
        if read.paths:
            none = False
            yield Split(read.images, torch.tensor([label[path] for path in read.paths]))
    if none:
        raise UserError(f"none of the {len(samples)} images of {where} can be read; check the files")


def file_answers(model: Model, where: Path, doing: str) -> LabelledLogits:
    """To the images in a folder of class folders, or in a CSV of path,label."""
    batches = labelled_files(model, where, doing)
    return LabelledLogits.joined([LabelledLogits(model(batch.resident).logits, batch.labels) for batch in batches])


def dataset_answers(model: Model, name: str, root: Path | None) -> LabelledLogits:
    """To the test images of a data set."""
    dataset = known_dataset(model, name, root)
    with Work("scoring images", len(dataset.test.labels)) as work:
        answers = model.answers(dataset.test, work)
    return numbered(model, dataset, answers)


def known_dataset(model: Model, name: str, root: Path | None, device: torch.device | str = "cpu") -> Dataset:
    """A data set whose test images alone are ready, and of no class that the model does not know."""
    if not name.startswith(PREFIX) and name not in data.DATASETS:
        raise UserError(
            f"{model.path} was trained on {name}, which is no data set here ({', '.join(data.DATASETS)}); give "
            "labelled images with --on"
        )
    dataset = data.load(name, root, device, train=False)
    check_known(model, set(dataset.classes), name)
    return dataset


def numbered(model: Model, dataset: Dataset, answers: LabelledLogits) -> LabelledLogits:
    """With labels that count the classes as the model does."""
    classes, (logits_MNK, labels_N) = model.about.classes or dataset.classes, answers
    if logits_MNK.shape[2] != len(classes):  # without names of its own, which are as many as its classes
        raise UserError(
            f"{model.path} answers for {logits_MNK.shape[2]} classes, which it does not name, and {dataset.name} has "
            f"{len(classes)}; save it with about=mixmo.About(..., classes=...)"
        )
    number = torch.tensor([classes.index(label) for label in dataset.classes])
    return LabelledLogits(logits_MNK, number[labels_N])


def check_known(model: Model, labels: set[str], where: str) -> None:
    unknown = sorted(labels - set(model.about.classes or labels))
    if unknown:
        raise UserError(f"{where} has classes that the model does not know: {', '.join(unknown[:5])}; remove them")


def check_same_classes(models: Sequence[Model]) -> None:
    """Those of an ensemble, in one order: labels of a few of them would not tell."""
    for model in models:
        if model.about.classes != models[0].about.classes:
            raise UserError(f"{model.path} knows other classes than {models[0].path}; an ensemble needs the same")


def is_dataset(what: str) -> bool:
    """Whether this is a data set by its name; else it is files, which are there."""
    if what.startswith(PREFIX) or (what in data.DATASETS and not Path(what).exists()):
        return True
    if not Path(what).exists():
        known = ", ".join(data.DATASETS)
        raise UserError(f"{what} is no data set ({known}), folder of class folders or CSV of path,label; give one")
    return False


def labelled_answers(model: Model, what: str, root: Path | None) -> LabelledLogits:
    """To a data set by its name, or to files."""
    return dataset_answers(model, what, root) if is_dataset(what) else file_answers(model, Path(what), "scoring")
