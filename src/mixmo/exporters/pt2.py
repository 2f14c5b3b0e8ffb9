"""PyTorch's own format: an exported program, which torch.export.load or AOTInductor run without this package."""

import io
import json
import zipfile
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram

from mixmo.exporters.file_metadata import Metadata
from mixmo.exporters.onnx import quiet

EXTRA = "mixmo.json"  # the name of the metadata inside the file


def write_pt2(program: ExportedProgram, metadata: Metadata, path: Path) -> None:
    """Write the program as a compressed .pt2 file with its metadata inside."""
    tidy(program)
    flatten(program)
    whole = io.BytesIO()  # not the file: where a disk is full, torch's own writer ends the process
    with quiet():
        torch.export.save(program, whole, extra_files={EXTRA: json.dumps(metadata.to_dict(), indent=2)})
    compress(whole, path)


def tidy(program: ExportedProgram) -> None:
    """Remove the images that it was traced with and the paths of this machine: a third of the graph's bytes."""
    program.example_inputs = None
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)


def flatten(program: ExportedProgram) -> None:
    """Put all weights on one level: looked up through nested modules, they take a tenth of a small network's time."""
    signature, state = program.graph_signature, program.state_dict
    names = {spec.target: spec.arg.name for spec in signature.input_specs if spec.target in state}
    flat = {names.get(name, name): tensor for name, tensor in state.items()}
    state.clear()
    state.update(flat)
    for spec in (*signature.input_specs, *signature.output_specs):
        spec.target = names.get(spec.target, spec.target)


def compress(whole: io.BytesIO, path: Path) -> None:
    """Compress the graph, which is text, to a twentieth of its bytes; torch reads compressed archives too."""
    with zipfile.ZipFile(whole) as written, zipfile.ZipFile(path, "w") as small:
        for entry in written.infolist():
            how = zipfile.ZIP_DEFLATED if entry.filename.endswith(".json") else zipfile.ZIP_STORED
            small.writestr(zipfile.ZipInfo(entry.filename, entry.date_time), written.read(entry), how)


class Session:
    """A written file, run by PyTorch."""

    def __init__(self, path: Path) -> None:
        self.module = torch.export.load(path).module()

    @torch.no_grad()
    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        return self.module(images)  # type: ignore[no-any-return]
