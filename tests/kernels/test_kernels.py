"""The Triton kernels: what they compute, in the interpreter, and what they need on a Hopper GPU, as compiled for it."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from packaging.version import Version

from mixmo.kernels.shapes import Shape

triton = pytest.importorskip("triton")
OLD = Version(triton.__version__) < Version("3.7") and Version(numpy.__version__) >= Version("2.4")
HERE = Path(__file__).resolve().parent


@pytest.mark.skipif(OLD, reason="the interpreter of Triton 3.6 needs numpy before 2.4")
def test_what_the_kernels_compute() -> None:
    """Triton reads when it is imported whether it interprets, so in a process of its own."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "interpreted.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    ("direction", "types"),
    [
        ("forward", "bf16.bf16"),
        ("input", "bf16.bf16"),
        ("weight", "bf16.bf16"),
        ("forward", "e4m3.e4m3"),
        ("input", "e5m2.e4m3"),
    ],
)
def test_a_kernel_compiles_for_hopper_without_spilling(
    direction: str, types: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mixmo.kernels.directions import DIRECTIONS, FP8

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    program = runpy.run_path(str(HERE.parents[1] / "benchmarks" / "convolutions_compile.py"))
    dtype, tiles = (
        (torch.bfloat16, DIRECTIONS[direction].tiles)
        if types == "bf16.bf16"
        else (torch.float8_e4m3fn, FP8[direction].tiles)
    )
    first, images = list(tiles.values())[:2]
    assert images == first._replace(images=True)
    for tile in (first, images):
        built = program["compile_direction"](direction, Shape(256, 160, 32, 32, 160, 1, 1), tile, dtype)
        assert all(each.fits for each in built)
        assert built[0].products > 0
        assert built[0].types == types
    assert not built[0].through_registers  # of the box of many images
