"""Golden losses: what 50 steps of every digits recipe compute, on one thread of a CPU.

A change that should not alter numbers leaves these as they are: bit for bit on the kind of machine that recorded them,
within rounding elsewhere. `python tests/golden/test_golden.py` records them anew.
"""

import hashlib
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from mixmo.engine import Runtime, train
from mixmo.engine.step import Step
from mixmo.recipes import named, names

FILE = Path(__file__).with_name("digits.json")
STEPS = 50
RECIPES = [name for name in names() if name.startswith("digits/")]


def machine() -> str:
    """What decides the last bits of a sum: processor features, torch."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} torch {torch.__version__.split('+')[0]}"


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Sum of the losses after each step, and the weights at the end: their checksum and their norm."""
    losses: list[float] = []
    weights: dict[str, torch.Tensor] = {}
    plain = Step.__call__

    def recorded(step: Step, *given: Any) -> None:
        plain(step, *given)
        losses.append(step.meter[0].item())
        weights.update({key: value.clone() for key, value in step.net.state_dict().items()})

    with patch.object(Step, "__call__", recorded):
        train(named(name).replace(epochs=10), folder, Runtime(device="cpu", quiet=True), until=STEPS)
    digest = hashlib.sha256()
    for key in sorted(weights):
        digest.update(weights[key].contiguous().numpy().tobytes())
    norm = torch.stack([value.double().norm() for value in weights.values()]).norm().item()
    return {"losses": losses, "weights": digest.hexdigest(), "norm": norm}


@pytest.mark.parametrize("name", RECIPES)
def test_fifty_steps_give_the_recorded_losses_and_weights(name: str, tmp_path: Path) -> None:
    golden = json.loads(FILE.read_text())
    found, recorded = measure(name, tmp_path / "run"), golden["recipes"][name]
    assert len(found["losses"]) == STEPS * named(name).networks
    if machine() == golden["machine"]:
        assert found == recorded
    else:
        assert found["losses"][:10] == pytest.approx(recorded["losses"][:10], rel=1e-4)
        assert found["losses"] == pytest.approx(recorded["losses"], rel=0.05)
        assert found["norm"] == pytest.approx(recorded["norm"], rel=0.01)


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    with tempfile.TemporaryDirectory() as root:
        found = {name: measure(name, Path(root) / name) for name in RECIPES}
    target.write_text(json.dumps({"machine": machine(), "recipes": found}, indent=1) + "\n")
