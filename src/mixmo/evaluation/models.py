"""Open networks for evaluation: from run directories, saved folders, shipped names and names on the Hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mixmo.augment.basic import centre, to_shape
from mixmo.data import DATASETS
from mixmo.data.folder import PREFIX
from mixmo.hub.loading import load
from mixmo.inference.predict import default_batch, predict
from mixmo.inference.preparation import resized_side
from mixmo.models import Ensemble
from mixmo.models.metadata import About
from mixmo.runs.directory import Run, is_run
from mixmo.storage.weights import is_stored
from mixmo.utils.errors import UserError


class Model(NamedTuple):
    """One network on its device, with what it needs to read images."""

    path: Path
    net: Ensemble
    about: About
    device: torch.device
    stored: bool  # a finished run, whose test logits are stored

    @property
    def batch(self) -> int:
        """Forward passes per batch."""
        return default_batch(self.device, self.about.size[1] * self.about.size[2])

    @property
    def trained_on(self) -> str:
        """The name of its data set, if that is known here."""
        name = self.about.dataset or "a data set that it does not name"
        if not name.startswith(PREFIX) and name not in DATASETS:
            raise UserError(f"{self.path} was trained on {name}, which is not here; give labelled images with --on")
        return name

    def prepare(self, images_NHWC: Tensor) -> Tensor:
        """Resize and crop uint8 images of any size as the test images of its training were."""
        channels, height, width = self.about.size
        if self.about.resize is None and images_NHWC.shape[1:] == (height, width, channels):
            return images_NHWC
        side = resized_side(self.about)
        return centre(to_shape(images_NHWC, channels, side, side), height)

    def logits(self, images_NHWC: Tensor, images_per_pass: int = 1) -> Tensor:
        """Predict prepared images: logits (heads, N, K), on the device of the images."""
        batch_size = self.batch * images_per_pass
        return predict(self.net, images_NHWC, images_per_pass=images_per_pass, batch_size=batch_size).logits


def open_models(paths: Sequence[Path], which: str, device: torch.device) -> list[Model]:
    """Load every network of `paths` onto `device`; a run of several networks gives one model for each."""
    return [_open(path, which, device) for given in paths for path in networks(given)]


def _open(path: Path, which: str, device: torch.device) -> Model:
    stored = is_run(path) and Run.open(path).is_finished()  # before the weights are read: the run may end meanwhile
    weights = path / f"{which}.safetensors"
    if stored and not is_stored(weights):  # as in results/
        raise UserError(f"{weights} is missing, and nothing can be predicted without weights; copy it there too")
    net = load(path, which).to(device)
    if net.about is None:
        raise UserError(f"{path} has no metadata on how to prepare images; save it with about=mixmo.About(...)")
    return Model(path, net, net.about, device, stored)


def networks(path: Path) -> list[Path]:
    """List the paths of the networks of a model: of a run of several, its folders."""
    return [run.path for run in Run.open_each([path])] if is_run(path) else [path]
