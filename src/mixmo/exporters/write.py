"""From a network to a file: a folded copy, traced for any batch size, and compared with PyTorch."""

import copy
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from mixmo.exporters import onnx, pt2
from mixmo.exporters.file_metadata import Metadata
from mixmo.exporters.graph import Deployed
from mixmo.models.network import Ensemble
from mixmo.surgery.fold import fold
from mixmo.surgery.probe import Size
from mixmo.utils.errors import UserError, first_line
from mixmo.utils.progress import Work

Session = Callable[[Tensor], dict[str, Tensor]]  # a written file that can be run: images to outputs by name


def prepared(net: Ensemble) -> tuple[Ensemble, Ensemble, str | None]:
    """Return float32 copies on the CPU in eval mode, folded and as it was, and why it could not be folded."""
    net = copy.deepcopy(net).cpu().float().eval()
    remove_parametrizations(net)
    try:
        return fold(net).eval(), net, None
    except UserError as error:
        warnings.warn(f"exported unfolded, with one encoder per member: {error}", stacklevel=4)
        return net, net, str(error)


def remove_parametrizations(net: nn.Module) -> None:
    """Replace weights that are computed at each call, as by a weight norm, by their values."""
    for layer in list(net.modules()):
        computed = layer._modules.get("parametrizations")
        if computed is not None:
            weights = {name: getattr(layer, name).detach().clone() for name in computed._modules}
            del layer._modules["parametrizations"]
            layer.__class__ = type(layer).__bases__[0]  # torch's own function changes it for all copies of the layer
            for name, weight in weights.items():
                layer.register_parameter(name, nn.Parameter(weight))


def write(graph: Deployed, metadata: Metadata, path: Path, calibration: Tensor | None) -> Session:
    """Write the file of a graph and return what runs it."""
    try:
        if path.suffix == ".onnx":
            onnx.write_onnx(traced(graph, metadata.size), metadata, path, calibration)
            return onnx.Session(path)
        graph = copy.deepcopy(graph)
        graph.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on processors and GPUs
        if metadata.precision == "bf16":
            graph.net.bfloat16()
        pt2.write_pt2(traced(graph, metadata.size), metadata, path)
        return pt2.Session(path)
    except (UserError, OSError):
        raise
    except Exception as error:
        raise UserError(f"{path.suffix} cannot hold this network ({reason(error)}); try the other format") from error


def traced(graph: Deployed, size: Size) -> ExportedProgram:
    """Trace the graph with torch.export, for any number of images."""
    images, batch = torch.rand(2, *size), torch.export.Dim("batch", min=1)
    errors = []
    for strict in (False, True):  # strict tracing also follows len(images), and takes longer
        try:
            with onnx.quiet():
                return torch.export.export(graph, (images,), dynamic_shapes=({0: batch},), strict=strict)
        except Exception as error:
            errors.append(error)
    hint = "let its forward not depend on the values or the number of images"
    raise UserError(f"torch.export cannot trace this network ({reason(errors[0])}); {hint}") from errors[0]


def reason(error: BaseException) -> str:
    """Return the first line of the original cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


def run(graph: Deployed, images_NCHW: Tensor, size: Size) -> dict[str, Tensor]:
    """Return the outputs for one batch; a UserError if the network cannot read this size."""
    try:
        with torch.no_grad():
            outputs: dict[str, Tensor] = graph(images_NCHW)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(f"the network cannot read images of {size} ({first_line(error)}); give their size=") from error
    if not all(values.isfinite().all() for values in outputs.values()):
        raise UserError("the network outputs NaN or infinite values; check whether its training diverged")
    return outputs


def compare(graph: Deployed, session: Session, images_NCHW: Tensor) -> float:
    """Return the largest difference of any output, for one image and for several."""
    worst = 0.0
    for batch in (images_NCHW, images_NCHW[:1]):
        with torch.no_grad():
            expected = graph(batch)
        outputs = session(batch)
        for name, values in expected.items():
            worst = max(worst, (outputs[name].float() - values).abs().max().nan_to_num(math.inf).item())
    return worst


@torch.no_grad()
def accuracy(predict: Session, images_NCHW: Tensor, labels_N: Tensor, work: Work) -> float:
    """Return the accuracy of the ensemble; `work` shows the progress."""
    predicted = []
    for batch in images_NCHW.split(100):
        predicted.append(predict(batch)["probs"].argmax(1))
        work.advance(len(batch))
    return (torch.cat(predicted) == labels_N.long()).double().mean().item()
