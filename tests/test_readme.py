"""The README's Python runs as it is written there; its commands exist."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mixmo
from mixmo.cli import COMMANDS
from mixmo.recipes import named

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def test_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrap, two steps on random images, predict, export, and ask onnxruntime."""
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    loader = [(torch.randn(4, 3, 64, 64), torch.randint(0, 5, (4,))) for _ in range(2)]
    names: dict[str, Any] = {"loader": loader, "steps": 2, "names": ["cat", "dog", "owl", "newt", "bee"]}
    monkeypatch.chdir(tmp_path)
    exec(code, names)
    lines = [line for line in capsys.readouterr().out.splitlines() if " sure, entropy " in line]
    assert len(lines) == 4
    assert all(line.split(":")[0] in names["names"] for line in lines)
    np.testing.assert_allclose(names["probs"], mixmo.predict(names["net"], loader[-1][0]).probs.numpy(), atol=1e-4)


def test_commands_and_recipes_exist() -> None:
    used = re.findall(r"^mixmo (\w+)(?: (\S+))?", README, flags=re.MULTILINE)
    assert used
    for command, first in used:
        assert command in COMMANDS
        if command in ("train", "show"):
            named(first)


def test_linked_files_exist() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).resolve().parents[1] / link).exists(), link
