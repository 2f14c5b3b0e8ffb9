"""One file to deploy: `mixmo.export(net, "model.onnx")` or `"model.pt2"`, folded, compared with PyTorch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mixmo.calibration.posthoc import Calibration
from mixmo.exporters import onnx
from mixmo.exporters.file_metadata import Metadata, check_statistics
from mixmo.exporters.graph import Deployed
from mixmo.exporters.write import accuracy, compare, prepared, run, write
from mixmo.inference.compiled import check_uncompiled
from mixmo.models.metadata import check_names
from mixmo.models.network import Ensemble
from mixmo.storage.files import staging_folder
from mixmo.surgery.probe import Size, check_size, input_size
from mixmo.surgery.unwrap import unwrap_ensemble
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError, check_number, check_path, unknown
from mixmo.utils.progress import Work
from mixmo.utils.tensors import check_filled

TOLERANCE = 1e-4  # of a float32 file against PyTorch
PRECISIONS = ("fp32", "bf16", "int8")
SUFFIXES = (".onnx", ".pt2")


@dataclass(frozen=True)
class Exported:
    """A file that was written and compared with PyTorch; `print` it for a summary.

    Attributes:
        path: The file.
        metadata: What is stored in it: classes, input, outputs, temperature.
        bytes: Its size.
        difference: Largest difference of any output from the float32 network in PyTorch.
        unfolded_because: Why the network could not be folded; None if it was.
        top1: Accuracy of the float32 network and of the file, where test images were given.
        tested: Number of test images.
    """

    path: Path
    metadata: Metadata
    bytes: int
    difference: float
    unfolded_because: str | None
    top1: tuple[float, float] | None
    tested: int

    def __str__(self) -> str:
        metadata = self.metadata
        network = "folded" if metadata.folded else f"not folded ({self.unfolded_because})"
        lines = [
            f"{self.path}: {self.bytes / 1e6:.2f} MB, {metadata.precision}, {metadata.members} members, {network}, "
            f"temperature {metadata.temperature:.4g}",
            f"feed: {metadata.preprocessing}",
            f"largest difference from PyTorch in float32: {self.difference:.1e}",
        ]
        if self.top1:
            before, after = (f"{100 * share:.2f} %" for share in self.top1)
            lines.append(f"Top1: {after}; in PyTorch in float32 {before} ({self.tested} test images)")
        elif metadata.precision != "fp32":
            lines.append("Top1 was not measured: no test images were given")
        return "\n".join(lines)


@on_cpu
def export(
    net: Ensemble,
    path: Path | str,
    *,
    size: Size | None = None,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    normalise: bool = False,
    temperature: float | None = None,
    precision: str = "fp32",
    calibration: Tensor | None = None,
    test: tuple[Tensor, Tensor] | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write a network as one `.onnx` or `.pt2` file for any batch size, and compare it with PyTorch.

    The outputs are `probs` (N, K), `members` (N, M, K), `entropy` (N,) and `mutual_information` (N,). The network is
    folded, or a warning says why not. A float32 file that differs from PyTorch by more than 1e-4 is not kept. What
    `net.about` holds, as after `mixmo.load`, need not be given.

    Args:
        net: A network of `mixmo.create`, `mixmo.wrap` or `mixmo.load`.
        path: The file to write; its suffix is the format.
        size: (C, H, W) of the images.
        classes: Names of the classes, for the metadata.
        mean: Mean of each channel, of pixels in 0..1, with which training images were normalised.
        std: Standard deviation of each channel.
        normalise: Let the file take pixels in 0..1 and normalise them itself.
        temperature: Divides all logits; by default that of `net.about.calibration`, else 1.
        precision: "fp32"; "bf16", which in ONNX stores weights in half the space and computes in float32, and in .pt2
            computes in bfloat16; "int8" (ONNX), which needs `calibration`.
        calibration: A few hundred images as the file takes them, for the ranges of int8.
        test: Images as the file takes them, and labels, to measure the accuracy of the precision.
        overwrite: Replace an existing file.

    Raises:
        UserError: If the file cannot be written, the network cannot be traced, or the outputs differ.
    """
    path = check_path("path", path)
    check_target(path, precision, overwrite)
    net = unwrap_ensemble(net)
    checked = _checked(net, size, classes, mean, std, normalise, temperature)
    _check_data(precision, calibration, test, checked.size)
    folded, whole, why = prepared(net)
    statistics = (checked.mean, checked.std) if normalise else ()
    graph, reference = (Deployed(one, checked.temperature, *statistics) for one in (folded, whole))
    graph.eval().requires_grad_(False)  # a .pt2 file shall compute no gradients
    uniform = torch.rand(3, *checked.size, generator=torch.Generator().manual_seed(0))
    images_NCHW = uniform if normalise else 2 * uniform - 1  # about the range of normalised images
    members, count = run(reference, images_NCHW, checked.size)["members"].shape[1:]
    _check_count(count, checked, test)
    metadata = checked.metadata(normalise, members, folded=why is None, precision=precision)
    with staging_folder(path) as folder:
        draft = folder / path.name
        with Work(f"writing {path.name}"):
            session = write(graph, metadata, draft, calibration)
        difference = compare(reference, session, images_NCHW)
        if precision == "fp32" and not difference <= TOLERANCE:
            raise UserError(f"{path.name} would differ from PyTorch by {difference:.1e}; try the other format")
        top1 = None
        if test is not None:
            with Work("measuring Top1", 2 * len(test[1])) as work:
                top1 = accuracy(reference, *test, work), accuracy(session, *test, work)
        length = draft.stat().st_size
        draft.replace(path)
    return Exported(path, metadata, length, difference, why, top1, len(test[1]) if test else 0)


class _Checked(NamedTuple):
    """Arguments of `export`, checked, with what the metadata of the network supply."""

    size: Size
    classes: Sequence[str] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    temperature: float
    fitted: Calibration
    resize: int | None

    def metadata(self, normalise: bool, members: int, folded: bool, precision: str) -> Metadata:
        channels = self.size[0]
        left = ((0.0,) * channels, (1.0,) * channels) if normalise else (self.mean, self.std)
        done = (*left, normalise, self.temperature, members, folded, precision)
        fitted = self.fitted
        return Metadata(tuple(self.classes or ()), self.size, *done, fitted.conformal, fitted.selective, self.resize)


def _checked(
    net: Ensemble,
    size: Size | None,
    classes: Sequence[str] | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    normalise: bool,
    temperature: float | None,
) -> _Checked:
    check_uncompiled(net)
    known = net.about
    fitted = (known and known.calibration) or Calibration()
    if known is not None:
        size, classes = size or known.size, classes or known.classes
        mean, std = (known.mean, known.std) if mean is None and std is None else (mean, std)
    temperature = fitted.temperature if temperature is None else temperature
    check_number("temperature", temperature)
    check_size(size)
    size = input_size(net) if size is None else (size[0], size[1], size[2])
    if not 0 < temperature < math.inf:
        raise UserError(f"temperature = {float(temperature)}; give a positive number")
    check_names(classes)
    resize = known.resize if known is not None and known.size == size else None
    statistics = check_statistics(mean, std, size[0], normalise)
    return _Checked(size, classes, *statistics, float(temperature), fitted, resize)


def _check_data(precision: str, calibration: Tensor | None, test: tuple[Tensor, Tensor] | None, size: Size) -> None:
    if calibration is not None:
        _check_images("calibration images", calibration, size)
    if test is not None:
        _check_test(test, size)
    if precision == "int8" and calibration is None:
        raise UserError("int8 takes its ranges from images; give a few hundred training images as calibration=")


def _check_count(count: int, checked: _Checked, test: tuple[Tensor, Tensor] | None) -> None:
    """Check everything that has classes against their count in the outputs."""
    if checked.classes is not None and len(checked.classes) != count:
        raise UserError(f"{len(checked.classes)} class names for a network of {count} classes; give one each")
    checked.fitted.check_classes(count)
    labels = None if test is None else test[1].long()  # PyTorch compares no unsigned ones of 16 bits and more
    if labels is not None and not 0 <= labels.min() <= labels.max() < count:
        raise UserError(f"test labels are {labels.min()} to {labels.max()}; classes are 0 to {count - 1}")


def _check_images(name: str, images: object, size: Size) -> None:
    check_filled(name, images)
    assert isinstance(images, Tensor)
    if tuple(images.shape[1:]) != size or not len(images) or not images.is_floating_point():
        given = f"{images.dtype} {tuple(images.shape)}"
        raise UserError(f"{name} are {given}; give floats (N, {str(size)[1:]}")


def _check_test(test: object, size: Size) -> None:
    if not isinstance(test, tuple | list) or len(test) != 2:
        raise UserError(f"test is a {type(test).__name__}; give a pair (images, labels)")
    images, labels = test
    _check_images("test images", images, size)
    check_filled("test labels", labels)
    if labels.shape != images.shape[:1] or labels.is_floating_point():
        given = f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise UserError(f"test labels are {given}; give one class index (integer) for each of {len(images)} images")


def check_target(path: Path, precision: str, overwrite: bool) -> None:
    """Check that the file can be written, before any work is done."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path} ends neither in .onnx nor in .pt2; name the file by its format")
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if path.suffix == ".pt2" and precision == "int8":
        raise UserError("int8 is made by onnxruntime; export to .onnx, or use precision bf16")
    if not path.parent.is_dir():
        raise UserError(f"the folder {path.parent} does not exist; create it, or name another file")
    if path.is_dir() or (path.exists() and not overwrite):
        raise UserError(f"{path} exists already; give another name, or overwrite it (--force, overwrite=True)")
    if path.suffix == ".onnx":
        onnx.check_installed()
