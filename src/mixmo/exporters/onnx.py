"""ONNX: one file with its metadata inside, in float32, bf16 or int8."""

import importlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from mixmo.exporters.file_metadata import INPUT, OUTPUTS, Metadata
from mixmo.utils.errors import UserError

LAYERS = ("Conv", "Gemm", "MatMul")


def check_installed() -> None:
    try:
        for name in ("onnx", "onnxruntime", "onnxscript"):
            importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"ONNX needs {error.name}, which is not installed; pip install 'mixmo[export]'") from error


def write_onnx(program: ExportedProgram, metadata: Metadata, path: Path, calibration: Tensor | None = None) -> None:
    """Write the program as an ONNX file in the precision of `metadata`; int8 takes its ranges from `calibration`."""
    import onnx

    names: dict[str, Any] = {"input_names": [INPUT], "output_names": list(OUTPUTS)}
    aten = torch.ops.aten
    known = {aten.scaled_dot_product_attention.default: attention, aten.special_entr.default: entropies}
    with quiet():
        plain = program.run_decompositions(known)  # into operations that torch's ONNX exporter knows
        written = torch.onnx.export(plain, **names, dynamo=True, optimize=True, verbose=False)
    assert written is not None
    model = written.model_proto
    tidy(model)
    if metadata.precision == "int8":
        assert calibration is not None
        model = quantised(model, calibration, path)
    elif metadata.precision == "bf16":
        halve_weights(model)
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, metadata.to_strings())
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def entropies(p: Tensor) -> Tensor:
    """Return torch's special.entr of probabilities: -p log p, and 0 at 0.

    >>> entropies(torch.tensor([0.0, 0.5, 1.0])).tolist() == torch.special.entr(torch.tensor([0.0, 0.5, 1.0])).tolist()
    True
    """
    return -p * p.clamp_min(torch.finfo(p.dtype).tiny).log()


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return torch's scaled_dot_product_attention at test time, by its definition.

    >>> q, k, v = torch.randn(3, 2, 4, 5, 8).unbind(0)
    >>> expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> torch.allclose(attention(q, k, v, is_causal=True), expected, atol=1e-6)
    True
    """
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None:
        hidden = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if hidden else scores + attn_mask
    return scores.softmax(-1) @ value


def tidy(model: Any) -> None:
    """Name the batch dimension, and remove the tracer's notes, which outweigh a small network's weights."""
    graph = model.graph
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer, *graph.value_info, graph):
        del part.metadata_props[:]
    batch = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param == batch:
                dimension.dim_param = "batch"


def halve_weights(model: Any) -> None:
    """Store matrices and filters in bfloat16, widened as the file is loaded; CPUs have no bfloat16 convolution."""
    import onnx

    graph = model.graph
    for index, tensor in enumerate(graph.initializer):
        if tensor.data_type != onnx.TensorProto.FLOAT or len(tensor.dims) < 2:
            continue
        values = torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy()).bfloat16()
        stored = onnx.TensorProto(
            name=f"{tensor.name}.bf16",
            dims=tensor.dims,
            data_type=onnx.TensorProto.BFLOAT16,
            raw_data=values.view(torch.int16).numpy().astype("<i2").tobytes(),
        )
        graph.node.insert(0, onnx.helper.make_node("Cast", [stored.name], [tensor.name], to=onnx.TensorProto.FLOAT))
        graph.initializer[index].CopyFrom(stored)


def quantised(model: Any, images: Tensor, path: Path) -> Any:
    """Return convolutions and dense layers in int8, with the ranges of these images; the rest stays float32."""
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches: Iterator[Tensor] = iter(images.split(64))

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self.batches, None)
            return None if batch is None else {INPUT: batch.numpy()}

    whole, prepared, small = (path.with_name(f"{name}.onnx") for name in ("whole", "prepared", "int8"))
    onnx.save(model, whole)
    with quiet():
        quant_pre_process(whole, prepared, skip_symbolic_shape=True)  # normalisations become part of convolutions
        quantization.quantize_static(
            prepared,
            small,
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=list(LAYERS),
            nodes_to_exclude=heads(onnx.load(prepared)),  # small, and probabilities are sensitive to them
            per_channel=True,
            weight_type=quantization.QuantType.QInt8,
            activation_type=quantization.QuantType.QInt8,  # unsigned ones overflow on processors without VNNI
        )
    return onnx.load(small)


def heads(model: Any) -> list[str]:
    """Return the layers after which there is no other."""
    before: set[str] = set()  # values that still reach a layer
    last = []
    for node in reversed(model.graph.node):  # a node comes after what it reads
        leads = any(name in before for name in node.output)
        if node.op_type in LAYERS and not leads:
            last.append(node.name)
        if leads or node.op_type in LAYERS:
            before.update(node.input)
    return last


class Session:
    """A written file, run by onnxruntime on the CPU."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        values = self.session.run(list(OUTPUTS), {INPUT: images.numpy()})
        return {name: torch.from_numpy(value) for name, value in zip(OUTPUTS, values, strict=True)}


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress what the exporters print and log."""
    before, void = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(void), redirect_stderr(void):
            yield
    finally:
        logging.disable(before)
