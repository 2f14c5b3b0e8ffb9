"""What a command predicts with, a network or the networks of a run, and the labelled images that it is given."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mixmo import data
from mixmo.about import About
from mixmo.augment.basic import centre, fit
from mixmo.calibration import Calibration
from mixmo.data.folder import PREFIX, in_class_folders, in_csv
from mixmo.data.images import Read, read_images
from mixmo.data.progress import track
from mixmo.errors import UserError
from mixmo.hub.load import load
from mixmo.models import Ensemble
from mixmo.predict import default_batch, predict
from mixmo.prediction import Prediction
from mixmo.runs import Run, is_run


class Model(NamedTuple):
    """What predicts: one network, or those of a run of several."""

    path: Path
    nets: list[Ensemble]
    about: About
    device: torch.device

    @property
    def batch(self) -> int:
        return default_batch(self.device, self.about.size[1] * self.about.size[2])

    @property
    def calibration(self) -> Calibration | None:
        """What was saved with it, or fitted to the validation images of its run."""
        return self.about.calibration if len(self.nets) == 1 else None

    def read(self, paths: Sequence[str], doing: str) -> Iterator[Read]:
        """Batches of files, with the progress and the time left on standard error, and the names of the unreadable."""
        batches = range(0, len(paths), self.batch)
        tracked = track(batches, f"{doing} {len(paths):,} images")
        for _, read in zip(tracked, read_images(paths, self.about, self.batch), strict=True):
            for path, reason in read.failed:
                print(f"skipped {path}: {reason}", file=sys.stderr)
            yield read

    def __call__(self, images_NHWC: Tensor, calibration: Calibration | None = None) -> Prediction:
        return predict(self.nets, images_NHWC, calibration=calibration, batch_size=self.batch)


def open_model(path: Path, which: str, device: torch.device) -> Model:
    """The network or networks, on the device."""
    paths = [Run.open(one).path for one in Run.open(path).networks()] if is_run(path) else [path]
    nets = [load(one, which).to(device) for one in paths]
    about: About | None = getattr(nets[0], "about", None)
    if about is None:
        raise UserError(f"{path} does not say how its images are prepared; save it with about=mixmo.About(...)")
    return Model(path, nets, about, device)


def file_logits(model: Model, where: Path, doing: str) -> tuple[Tensor, Tensor]:
    """Every head's logits of the images in a folder of class folders, or in a CSV of path,label, and their labels."""
    samples = in_class_folders(where) if where.is_dir() else in_csv(where)
    classes = model.about.classes
    if classes is None:
        raise UserError(f"{model.path} does not name its classes; save it with about=mixmo.About(..., classes=...)")
    check_known(model, {sample.label for sample in samples}, str(where))
    label = {sample.path: classes.index(sample.label) for sample in samples}
    logits, labels = [], []
    for read in model.read([sample.path for sample in samples], doing):
        if read.paths:
            logits.append(model(read.images).logits)
            labels += [label[path] for path in read.paths]
    if not labels:
        raise UserError(f"none of the {len(samples)} images of {where} can be read; check the files")
    return torch.cat(logits, dim=1), torch.tensor(labels)


def dataset_logits(model: Model, name: str, root: Path | None) -> tuple[Tensor, Tensor]:
    """Every head's logits of the test images of a data set, brought to the size that the network sees, and labels."""
    about = model.about
    channels, height, width = about.size
    if height != width:
        raise UserError(
            f"{model.path} sees {height} x {width} pixels, and images are cut to squares only; give tensors to "
            "mixmo.predict"
        )
    dataset = data.load(name, root, train=False)
    classes = about.classes or dataset.classes
    check_known(model, set(dataset.classes), name)
    side, count = about.resize or height, len(dataset.test.labels)
    logits, labels = [], []
    tracked = track(range(0, count, model.batch), f"scoring {count:,} images")
    for part, _ in zip(dataset.test.batches(model.batch), tracked, strict=False):  # fewer, if files cannot be read
        logits.append(model(centre(fit(part.resident, channels, side, side), height)).logits)
        labels.append(part.labels)
    logits_MNK = torch.cat(logits, dim=1)
    if logits_MNK.shape[2] != len(classes):  # without names of its own, which are as many as its classes
        raise UserError(
            f"{model.path} answers for {logits_MNK.shape[2]} classes, which it does not name, and {name} has "
            f"{len(classes)}; save it with about=mixmo.About(..., classes=...)"
        )
    number = torch.tensor([classes.index(label) for label in dataset.classes])
    return logits_MNK, number[torch.cat(labels)]


def check_known(model: Model, labels: set[str], where: str) -> None:
    unknown = sorted(labels - set(model.about.classes or labels))
    if unknown:
        raise UserError(f"{where} has classes that the model does not know: {', '.join(unknown[:5])}; remove them")


def labelled_logits(model: Model, what: str, root: Path | None = None) -> tuple[Tensor, Tensor]:
    """Those of a data set by its name, or of files."""
    if what.startswith(PREFIX) or (what in data.DATASETS and not Path(what).exists()):
        return dataset_logits(model, what, root)
    if not Path(what).exists():
        known = ", ".join(data.DATASETS)
        raise UserError(f"{what} is no data set ({known}), folder of class folders or CSV of path,label; give one")
    return file_logits(model, Path(what), "scoring")
