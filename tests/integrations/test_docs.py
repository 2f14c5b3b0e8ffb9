"""The Python of docs/loops.md runs as it is written there."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch.utils.data import TensorDataset

import mixmo

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "loops.md").read_text()
BLOCKS = re.findall(r"^## ([^\n]*)$|```python\n(.*?)```", TEXT, flags=re.DOTALL | re.MULTILINE)


def blocks() -> dict[str, str]:
    """Code by the heading it stands under; several blocks of one heading follow each other."""
    found: dict[str, str] = {}
    heading = ""
    for title, code in BLOCKS:
        heading = title or heading
        if code:
            found[heading] = found.get(heading, "") + code
    return found


SECOND, *OTHERS = blocks()


def test_from_timm_to_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    loader = [(torch.randn(4, 3, 32, 32), torch.randint(0, 3, (4,))) for _ in range(2)]
    names: dict[str, Any] = {"loader": loader, "steps": 2, "names": ["cat", "dog", "eel"]}
    exec(blocks()[SECOND], names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(
        re.fullmatch(r"(cat|dog|eel): \d+% sure, entropy \d\.\d\d, .* by \d\.\d{3} nats", line) for line in lines
    )
    prediction = mixmo.predict(names["net"], names["images"])
    np.testing.assert_allclose(names["probs"], prediction.probs, atol=1e-4)
    np.testing.assert_allclose(names["members"], prediction.members.transpose(0, 1), atol=1e-4)
    np.testing.assert_allclose(names["information"], prediction.mutual_information, atol=1e-4)
    about = onnxruntime.InferenceSession("model.onnx").get_modelmeta().custom_metadata_map
    assert about["folded"] == "true"


@pytest.mark.parametrize("heading", OTHERS)
def test_blocks(heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    sets = [TensorDataset(torch.randn(n, 3, 8, 8), torch.randint(0, 10, (n,))) for n in (128, 16)]
    net = mixmo.create("wrn10_1", classes=10, members=2)
    before = {name: weight.clone() for name, weight in net.named_parameters()}
    names: dict[str, Any] = {"net": net, "mixer": mixmo.Mixer("cut"), "train_set": sets[0], "test_set": sets[1]}
    exec(blocks()[heading], names)
    if "optimizer" in names or "trainer" in names:
        assert any(not torch.equal(weight, before[name]) for name, weight in net.named_parameters())


def test_loops_are_short() -> None:
    for heading, code in blocks().items():
        if heading not in (SECOND, "torchmetrics and torch-uncertainty"):
            assert len(code.splitlines()) < 15, heading
