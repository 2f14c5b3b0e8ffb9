"""timm and torchvision can be imported after mixmo, whichever builds of torch and torchvision are installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mixmo
from mixmo.utils import torchvision_ops


def python(code: str) -> str:
    """Standard output of a fresh interpreter without the tests' own imports."""
    env = {**os.environ, "PYTHONPATH": str(Path(mixmo.__file__).parents[1])}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout


def test_import_mixmo_does_not_import_torch() -> None:
    assert python("import sys, mixmo; print('torch' in sys.modules)") == "False\n"


def test_timm_can_be_imported_after_mixmo() -> None:
    pytest.importorskip("timm")
    code = "import mixmo, sys; n = len(sys.meta_path); import timm, torchvision; print(n - len(sys.meta_path))"
    assert python(code) == "1\n"  # the finder removes itself


def test_operators_that_exist_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchvision")
    monkeypatch.setattr("torch.library.define", lambda *_: pytest.fail("declared again"))
    torchvision_ops.declare_missing()
