"""Mixed encodings in one pass: what the kernels compute, in the interpreter, and what they need on a Hopper GPU."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy
import pytest
import torch
from packaging.version import Version
from torch import Tensor
from torch.nn.functional import conv2d

from mixmo.kernels import stem

triton = pytest.importorskip("triton")
OLD = Version(triton.__version__) < Version("3.7") and Version(numpy.__version__) >= Version("2.4")
HERE = Path(__file__).resolve().parent


@pytest.mark.skipif(OLD, reason="the interpreter of Triton 3.6 needs numpy before 2.4")
def test_what_the_kernels_compute() -> None:
    """Triton reads when it is imported whether it interprets, so in a process of its own."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "interpreted_stem.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.parametrize(("window", "k"), [(7, 64), (3, 32), (4, 96)])
def test_the_kernels_compile_for_hopper_without_spilling(
    window: int, k: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mixmo.kernels import stem_kernels
    from mixmo.kernels.stem_layout import padded_image, padded_weight

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    program = runpy.run_path(str(HERE.parents[1] / "benchmarks" / "convolutions_compile.py"))
    program["KERNELS"][:] = [(stem_kernels, name) for name in ("stem_kernel", "stem_weight_gradient_kernel")]
    image, weight, y = (
        torch.empty(size, dtype=torch.bfloat16, device="meta")
        for size in ((128, 3, 224, 224), (k, 3, window, window), (128, 112, 112, k))
    )
    how = (112, 112), (window, window), (2, 2), ((window - 1) // 2,) * 2
    images, weights = (torch.stack([x, x]) for x in (padded_image(image, *how), padded_weight(weight)))
    coefficients = torch.empty(2, 128, 1, 112, 112, device="meta")
    _, rows, run, _ = weights.shape
    with program["compiled"]() as built:
        stem_kernels.forward(images, weights, None, coefficients, y, (2, 2), stem_kernels.forward_tile(k))
        tile = stem_kernels.weight_gradient_tile(rows * run, k)
        stem_kernels.weight_gradient(y, images, rows, run, coefficients, (2, 2), tile)
    assert len(built) == 2
    for each in map(program["report"], built):
        assert each.fits
        assert each.spilled == 0
        assert each.types == "bf16.bf16"
        assert not each.through_registers


def test_a_kernel_that_is_wrong_or_fails_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def right(images: Any, weights: Any, biases: Any, shares: Tensor, stride: Any, padding: Any) -> Tensor:
        each = [conv2d(x, w, None, stride, padding) for x, w in zip(images, weights, strict=True)]
        return 2 * sum(share.bfloat16() * e for share, e in zip(shares, each, strict=True))

    cpu = torch.device("cpu")
    monkeypatch.setattr(stem, "mixed_stem", right)
    assert stem.stem_is_right.__wrapped__(cpu)
    monkeypatch.setattr(stem, "mixed_stem", lambda *given: 1.1 * right(*given))
    with pytest.warns(RuntimeWarning, match="stems is not used .*its result differs"):
        assert not stem.stem_is_right.__wrapped__(cpu)
    monkeypatch.setattr(stem, "mixed_stem", Mock(side_effect=RuntimeError("no kernel image")))
    with pytest.warns(RuntimeWarning, match="RuntimeError: no kernel image"):
        assert not stem.stem_is_right.__wrapped__(cpu)
