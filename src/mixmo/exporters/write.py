"""From the network to a file that runs: a folded copy, traced for any number of images."""

import copy
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

Session = Callable[[Tensor], dict[str, Tensor]]  # a written file that can be run: images to outputs by name


def prepared(net: Ensemble) -> tuple[Ensemble, Ensemble, str | None]:
    """Float32 copies on the CPU in eval mode: folded if it can be, as it was, and else the reason why not."""
    net = copy.deepcopy(net).cpu().float().eval()
    settle(net)
    try:
        return fold(net).eval(), net, None
    except UserError as error:
        warnings.warn(f"exported unfolded, with one encoder a member: {error}", stacklevel=4)
        return net, net, str(error)


def settle(net: nn.Module) -> None:
    """Weights that are computed at each call, of a weight norm for instance, become what they are.

    torch's own remove_parametrizations changes the class of the layer, which the copies of a layer share.
    """
    for layer in list(net.modules()):
        computed = layer._modules.get("parametrizations")
        if computed is not None:
            weights = {name: getattr(layer, name).detach().clone() for name in computed._modules}
            del layer._modules["parametrizations"]
            layer.__class__ = type(layer).__bases__[0]
            for name, weight in weights.items():
                layer.register_parameter(name, nn.Parameter(weight))


def write(graph: Deployed, metadata: Metadata, path: Path, calibration: Tensor | None) -> Session:
    """The file of the graph, and what runs it. What the tracers raise says what of the network they cannot follow."""
    try:
        if path.suffix == ".onnx":
            onnx.write(traced(graph, metadata.size), metadata, path, calibration)
            return onnx.Session(path)
        graph = copy.deepcopy(graph)
        graph.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on processors and GPUs
        if metadata.precision == "bf16":
            graph.net.bfloat16()
        pt2.write(traced(graph, metadata.size), metadata, path)
        return pt2.Session(path)
    except (UserError, OSError):
        raise
    except Exception as error:
        raise UserError(
            f"this network cannot be exported to {path.suffix} ({reason(error)}); try the other format"
        ) from error


def traced(graph: Deployed, size: Size) -> ExportedProgram:
    """The graph as torch.export sees it, for any number of images."""
    images, batch = torch.rand(2, *size), torch.export.Dim("batch", min=1)
    first: Exception | None = None
    for strict in (False, True):  # read line by line, code that takes len(images) stays free; it takes longer
        try:
            with onnx.quiet():
                return torch.export.export(graph, (images,), dynamic_shapes=({0: batch},), strict=strict)
        except Exception as error:
            first = first or error
    assert first is not None
    raise UserError(
        f"this network cannot be exported: torch.export cannot follow it ({reason(first)}); let its forward not depend "
        "on the values or the number of the images"
    ) from first


def reason(error: BaseException) -> str:
    """What the tracers say at the bottom of it, in a line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)
