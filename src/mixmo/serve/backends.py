"""Inference backends: networks in PyTorch, or an exported ONNX file in onnxruntime."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from mixmo.augment.basic import normalise
from mixmo.calibration.posthoc import Calibration
from mixmo.exporters import onnx
from mixmo.exporters.file_metadata import Metadata
from mixmo.inference.predict import check_multiplex, default_batch, predict
from mixmo.inference.prediction import Prediction
from mixmo.models.metadata import About
from mixmo.models.network import Ensemble, Network
from mixmo.utils.errors import UserError, first_line

MIX_A_FILE = "an ONNX file reads one image per pass; serve the network that it was exported from to mix two images"
WARMED = 32  # images: larger batches are rare, and take memory that others may need
MIX_SEVERAL = "several networks are served as one ensemble; serve one of them to mix two images"


class Backend(Protocol):
    """The served network. Only one thread may call it."""

    name: str  # of the model, as the user gave it
    runtime: str  # "PyTorch" or "ONNX Runtime"
    device: torch.device
    about: About
    members: int  # heads of all networks

    @property
    def batch(self) -> int:
        """Images per forward pass that fit well into memory."""
        ...

    def warm_up(self) -> None:
        """Predict, so that the first requests need not wait longer than others; called by the thread that predicts."""
        ...

    def predict(self, images_NHWC: Tensor) -> Prediction:
        """Predict prepared uint8 images (N, H, W, C)."""
        ...

    def mixing_network(self) -> Ensemble:
        """Return the network whose M inputs can be mixed, or raise a UserError that says why there is none."""
        ...


class TorchBackend:
    """One network in PyTorch, or several as one ensemble.

    Args:
        nets: Networks on one device, with metadata.
        name: Of the model.
        calibration: What `mixmo.calibrate` fitted to the ensemble.

    Attributes:
        sizes: Batch sizes, ascending; others are padded to the next. Empty: every size is predicted as it is.
    """

    runtime = "PyTorch"

    def __init__(self, nets: Sequence[Ensemble], name: str, calibration: Calibration | None = None) -> None:
        about = nets[0].about
        if about is None:
            raise UserError(f"{name} has no metadata on how to prepare images; set net.about = mixmo.About(...)")
        self.nets, self.name, self.calibration = [net.eval() for net in nets], name, calibration
        self.about = about if calibration is None else about.calibrated(calibration)
        self.device = next(nets[0].parameters()).device
        self.members = sum(net.num_heads for net in nets)
        # cuDNN prepares its algorithms for every new size, which takes longer than many passes. A CPU need not, and
        # would compute the padding.
        self.sizes = () if self.device.type == "cpu" else _sizes(self.batch)

    @property
    def batch(self) -> int:
        most = 32 if self.device.type == "cpu" else 128  # larger ones are hardly faster and let others wait
        return min(most, default_batch(self.device, self.about.size[1] * self.about.size[2]))

    def warm_up(self) -> None:
        if self.device.type != "cpu":  # then the CPU has only small tensors, whose operations 16 threads slow down
            torch.set_num_threads(1)
        for size in self.sizes or (1,):
            if size <= WARMED:
                self.predict(_blank(size, self.about))

    def predict(self, images_NHWC: Tensor) -> Prediction:
        count = len(images_NHWC)
        last = images_NHWC[-1:].expand(_missing(count % self.batch, self.sizes), -1, -1, -1)
        prediction = predict(
            self.nets, torch.cat([images_NHWC, last]), calibration=self.calibration, batch_size=self.batch
        )
        return replace(prediction, logits=prediction.logits[:, :count]) if len(last) else prediction

    def mixing_network(self) -> Ensemble:
        if len(self.nets) > 1:
            raise UserError(MIX_SEVERAL)
        net = self.nets[0]
        check_multiplex(net, 2)
        if isinstance(net, Network) and net.concat:
            raise UserError("the encodings of this network are concatenated, not mixed; serve a MixMo network")
        return net


class OnnxBackend:
    """A file that `mixmo export` wrote, in onnxruntime on the CPU."""

    runtime = "ONNX Runtime"

    def __init__(self, path: Path) -> None:
        onnx.check_installed()
        if not path.is_file():
            raise UserError(f"{path} does not exist; give an ONNX file that `mixmo export` wrote")
        try:
            self.session = onnx.Session(path)
        except Exception as error:  # onnxruntime has an exception for each kind of damage
            raise UserError(f"{path} cannot be read as ONNX ({first_line(error)}); export it again") from error
        metadata = Metadata.from_strings(self.session.session.get_modelmeta().custom_metadata_map)
        if not metadata.mean:
            raise UserError(f"{path} does not store how images are normalised; export it with mean= and std=")
        self.name, self.device, self.members = path.name, torch.device("cpu"), metadata.members
        self.temperature, self.calibration = metadata.temperature, _calibration(metadata)
        self.about = About(
            metadata.size,
            metadata.mean,
            metadata.std,
            classes=metadata.classes or None,
            resize=metadata.resize,
            calibration=self.calibration,
        )

    @property
    def batch(self) -> int:
        return min(32, default_batch(self.device, self.about.size[1] * self.about.size[2]))

    def warm_up(self) -> None:
        self.predict(_blank(1, self.about))

    def predict(self, images_NHWC: Tensor) -> Prediction:
        logits = [self._logits(part) for part in images_NHWC.split(self.batch)]
        return Prediction(torch.cat(logits, dim=1), self.calibration)

    def _logits(self, images_NHWC: Tensor) -> Tensor:
        """T log p, which are the logits z up to a constant per member: the file outputs p = softmax(z / T)."""
        images_NCHW = normalise(images_NHWC, self.about.mean, self.about.std).contiguous()
        members_NMK = self.session(images_NCHW)["members"]
        return self.temperature * members_NMK.clamp_min(torch.finfo(members_NMK.dtype).tiny).log().transpose(0, 1)

    def mixing_network(self) -> Ensemble:
        raise UserError(MIX_A_FILE)


def _sizes(batch: int) -> tuple[int, ...]:
    """Return the powers of two below `batch`, and it.

    >>> _sizes(31)
    (1, 2, 4, 8, 16, 31)
    """
    return (*(2**power for power in range((batch - 1).bit_length())), batch)


def _missing(count: int, sizes: Sequence[int]) -> int:
    """Return the images that bring `count` to the next size.

    >>> [_missing(count, (1, 2, 4)) for count in range(5)], _missing(3, ())
    ([0, 0, 0, 1, 0], 0)
    """
    return next((size - count for size in sizes if 0 < count <= size), 0)


def _blank(count: int, about: About) -> Tensor:
    channels, height, width = about.size
    return torch.zeros(count, height, width, channels, dtype=torch.uint8)


def _calibration(metadata: Metadata) -> Calibration | None:
    if metadata.sets is None and metadata.abstain is None and metadata.temperature == 1:
        return None
    return Calibration(metadata.temperature, metadata.sets, metadata.abstain)
