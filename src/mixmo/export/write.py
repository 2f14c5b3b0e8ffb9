"""From the network to a file that runs: a folded copy, traced for any number of images."""

import copy
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from mixmo.errors import UserError
from mixmo.export import onnx_, pt2
from mixmo.export.graph import Deployed
from mixmo.export.metadata import Metadata
from mixmo.export.shape import Size
from mixmo.fold import fold
from mixmo.models.network import Ensemble

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class Session(Protocol):
    """A written file that can be run."""

    def __call__(self, images: Tensor) -> dict[str, Tensor]: ...


def prepared(net: Ensemble) -> tuple[Ensemble, Ensemble, str | None]:
    """Float32 copies on the CPU in eval mode: folded if it can be, as it was, and else the reason why not."""
    net = copy.deepcopy(net).cpu().float().eval()
    try:
        return fold(net).eval(), net, None
    except UserError as error:
        warnings.warn(f"exported unfolded, with one encoder a member: {error}", stacklevel=3)
        return net, net, str(error)


def write(graph: Deployed, metadata: Metadata, path: Path, calibration: Tensor | None) -> Session:
    """The file of the graph, and what runs it. What the tracers raise says what of the network they cannot follow."""
    try:
        if path.suffix == ".onnx":
            onnx_.write(traced(graph, metadata.size), metadata, path, calibration)
            return onnx_.Session(path)
        graph = copy.deepcopy(graph)
        graph.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on processors and GPUs
        if metadata.precision == "bf16":
            graph.net.bfloat16()
        pt2.write(traced(graph, metadata.size), metadata, path)
        return pt2.Session(path)
    except (UserError, OSError):
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"this network cannot be exported to {path.suffix} ({reason}); try the other format") from error


def traced(graph: Deployed, size: Size) -> "ExportedProgram":
    """The graph as torch.export sees it, for any number of images."""
    batch = torch.export.Dim("batch", min=1)
    with onnx_.quiet():
        return torch.export.export(graph, (torch.rand(2, *size),), dynamic_shapes=({0: batch},))
