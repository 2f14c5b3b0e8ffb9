"""Compile every kernel of `mixmo.kernels` for Hopper ahead of time, without a GPU; report what a program needs.

PYTHONPATH=src python benchmarks/convolutions.py --compile-only
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

from mixmo.kernels import forward, input_gradient, weight_gradient
from mixmo.kernels.directions import DIRECTIONS
from mixmo.kernels.shapes import Shape, Tile

HOPPER = GPUTarget("cuda", 90, 32)
SHARED = 227 * 1024  # bytes that a program may use there
MODULES = (forward, input_gradient, weight_gradient)
KERNELS = [(module, name) for module in MODULES for name in vars(module) if name.endswith("_kernel")]
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


class Compiled(NamedTuple):
    kernel: str
    registers: int
    spilled: int  # bytes
    shared: int  # bytes
    products: int  # instructions of the tensor cores (wgmma) in the program's text

    @property
    def fits(self) -> bool:
        return self.shared <= SHARED and self.spilled <= 64


class Launch(NamedTuple):
    kernel: Any
    args: tuple[Any, ...]
    settings: dict[str, Any]


class Recorder:
    """Stands for a kernel: notes how it is launched."""

    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, _: Any) -> Any:
        return lambda *args, **settings: self.launches.append(Launch(self.kernel, args, settings))


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Note the launches of all kernels instead of launching them."""
    launches: list[Launch] = []
    kernels = [(module, name, getattr(module, name)) for module, name in KERNELS]
    try:
        for module, name, kernel in kernels:
            setattr(module, name, Recorder(kernel, launches))
        yield launches
    finally:
        for module, name, kernel in kernels:
            setattr(module, name, kernel)


def compile_direction(direction: str, shape: Shape, tile: Tile, dtype: torch.dtype) -> list[Compiled]:
    """Compile what computes one direction of a convolution with one tile."""
    x, dy, weight = (
        torch.empty(size, dtype=dtype, device="meta", memory_format=torch.channels_last)
        for size in (
            (shape.n, shape.c, shape.h, shape.w),
            (shape.n, shape.k, shape.out_h, shape.out_w),
            (shape.k, shape.c, 3, 3),
        )
    )
    with recorded() as launches:
        DIRECTIONS[direction].compute(x, weight, dy, shape.stride, shape.padding, tile)
    return [compile_launch(launch) for launch in launches]


def compile_launch(launch: Launch) -> Compiled:
    kernel, names = launch.kernel, launch.kernel.arg_names
    constants = {name: value for name, value in launch.settings.items() if name in names}
    options = {name: value for name, value in launch.settings.items() if name not in names}
    given = dict(zip(names, launch.args, strict=False))
    signature = {name: "constexpr" if name in constants else kind(given[name]) for name in names}
    aligned = {
        (position,): [["tt.divisibility", 16]]
        for position, name in enumerate(names)
        if isinstance(given.get(name), torch.Tensor)
    }
    built: Any = triton.compile(ASTSource(kernel, signature, constants, aligned), target=HOPPER, options=options)
    registers, spilled = assembled(built.asm["ptx"])
    products = built.asm["ptx"].count("wgmma.mma_async")
    return Compiled(kernel.__name__, registers, spilled, built.metadata.shared, products)


def kind(value: Any) -> str:
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)}>"
    return f"*{TYPES[value.dtype]}" if isinstance(value, torch.Tensor) else "i32"


def assembled(ptx: str) -> tuple[int, int]:
    """Return the registers per thread and the bytes spilled, as ptxas reports them."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        ptxas = triton.knobs.nvidia.ptxas.path
        command = [ptxas, "-v", "--gpu-name", "sm_90a", str(source), "-o", str(Path(folder, "kernel.cubin"))]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers, stores = (re.search(what, report) for what in (r"Used (\d+) registers", r"(\d+) bytes spill stores"))
    assert registers, report
    assert stores, report
    return int(registers[1]), int(stores[1])
