"""Compile the kernels of `mixmo.kernels` for Hopper ahead of time, without a GPU; report what a program needs."""

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

from mixmo.kernels import convolution, weight_gradient
from mixmo.kernels.choice import operands_fp8
from mixmo.kernels.directions import DIRECTIONS, FP8
from mixmo.kernels.quantisation import E4M3
from mixmo.kernels.shapes import Shape, Tile

SHARED = 227 * 1024  # bytes that a program may use there
MODULES = (convolution, weight_gradient)
KERNELS = [(module, name) for module in MODULES for name in vars(module) if name.endswith("_kernel")]


class Compiled(NamedTuple):
    kernel: str
    registers: int
    spilled: int  # bytes
    shared: int  # bytes
    products: int  # instructions of the tensor cores (wgmma) in the program's text
    types: str  # of what these multiply, such as bf16.bf16
    through_registers: bool  # the first factor goes through registers
    overwritten: bool  # and the loop loads the next one while the tensor cores may still read it
    serialised: bool  # each product waits for the one before: half the speed

    @property
    def fits(self) -> bool:
        return self.shared <= SHARED and self.spilled <= 64 and not self.overwritten and not self.serialised


class Hopper:
    """Stands for the driver of a GPU; only compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiler:
    """Stands for a kernel: compiles it where it would be launched."""

    def __init__(self, kernel: Any, built: list[Any]) -> None:
        self.kernel, self.built = kernel, built

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **settings: self.built.append(self.kernel.warmup(*args, grid=grid, **settings))


@contextmanager
def compiled() -> Iterator[list[Any]]:
    """Compile the kernels that are launched inside, instead of launching them."""
    built: list[Any] = []
    kernels = [(module, name, getattr(module, name)) for module, name in KERNELS]
    triton.runtime.driver.set_active(Hopper())
    try:
        for module, name, kernel in kernels:
            setattr(module, name, Compiler(kernel, built))
        yield built
    finally:
        triton.runtime.driver.set_active(None)  # the next to ask finds that of this machine
        for module, name, kernel in kernels:
            setattr(module, name, kernel)


def compile_direction(direction: str, shape: Shape, tile: Tile, dtype: torch.dtype) -> list[Compiled]:
    """Compile what computes one direction of a convolution with one tile; in fp8 if dtype is e4m3."""
    if dtype == E4M3:
        with compiled() as built:
            FP8[direction].compute(operands_fp8(shape, direction, torch.device("meta"), 1)[0], shape, tile)
        return [report(each) for each in built]
    x, weight, dy = (
        torch.empty(size, dtype=dtype, device="meta", memory_format=torch.channels_last)
        for size in (shape.input, (shape.k, shape.c, 3, 3), shape.output)
    )
    with compiled() as built:
        DIRECTIONS[direction].compute(x, weight, dy, shape.stride, shape.padding, tile)
    return [report(each) for each in built]


def report(built: Any) -> Compiled:
    """Return what ptxas reports: registers per thread, bytes spilled, whether products run one by one."""
    ptx, ptxas = built.asm["ptx"], triton.knobs.nvidia.ptxas.path
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [ptxas, "-v", "--gpu-name", "sm_90a", str(source), "-o", str(Path(folder, "kernel.cubin"))]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers, stores = (re.search(what, text) for what in (r"Used (\d+) registers", r"(\d+) bytes spill stores"))
    assert registers, text
    assert stores, text
    products = re.findall(r"wgmma\.mma_async\.\S+\.f32\.(\w+\.\w+)", ptx)
    through_registers = re.search(r"wgmma\.mma_async\S+\s+\{[^}]*\},\s*\{", ptx) is not None
    return Compiled(
        kernel=built.metadata.name,
        registers=int(registers[1]),
        spilled=int(stores[1]),
        shared=built.metadata.shared,
        products=len(products),
        types=", ".join(sorted(set(products))),
        through_registers=through_registers,
        overwritten=through_registers and re.search(r"wgmma\.wait_group\S*\s+[1-9]", ptx) is not None,
        serialised="instructions are serialized" in text,
    )
