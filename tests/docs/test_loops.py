"""The Python of docs/guides/loops.md runs as it is written there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import mixmo

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "loops.md").read_text()
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


def given() -> dict[str, Any]:
    """The names that the blocks take for granted."""
    torch.manual_seed(0)
    sets = [TensorDataset(torch.randn(n, 3, 8, 8), torch.randint(0, 10, (n,))) for n in (128, 16)]
    net = mixmo.create("wrn10_1", classes=10, members=2)
    return {"net": net, "mixer": mixmo.Mixer("cut"), "train_set": sets[0], "test_set": sets[1]}


@pytest.mark.parametrize("heading", blocks())
def test_code_under_each_heading_of_the_loops_guide_runs(
    heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = given()
    net = names["net"]
    before = {name: weight.clone() for name, weight in net.named_parameters()}
    exec(blocks()[heading], names)
    if "optimizer" in names or "trainer" in names:
        assert any(not torch.equal(weight, before[name]) for name, weight in net.named_parameters())


def test_class_weights_and_smoothing() -> None:
    """The losses of the docs are those of torch, head by head and sample by sample."""
    names = given()
    names["net"].eval()
    exec(blocks()["Class weights, smoothed labels, other losses"], names)
    mix, logits = names["mix"], names["net"](names["mix"])
    options = {"weighted_loss": {"weight": names["class_weights"]}, "smooth_loss": {"label_smoothing": 0.1}}
    for name, option in options.items():
        entropy = [F.cross_entropy(z, y, **option, reduction="none") for z, y in zip(logits, mix.targets, strict=True)]
        torch.testing.assert_close(names[name], (mix.weights * torch.stack(entropy)).mean(1).sum())


def test_groups_are_the_ends_and_the_core() -> None:
    names = given()
    exec(blocks()["Parameter groups"], names)
    outer, core = ({id(weight) for weight in names[part]} for part in ("outer", "core"))
    net = names["wrapped"]
    mix = mixmo.Mixer("cut", stride=net.stride)(*names["train_set"][:4])
    mixmo.loss(net(mix), mix).backward()
    learned = {id(weight) for weight in net.parameters() if weight.grad is not None}
    assert learned == outer
    assert len(outer) == 2 + 4  # two stems without a bias, two heads with one
    assert outer | core == {id(weight) for weight in net.parameters()}
    assert not outer & core


def test_loops_are_short() -> None:
    for heading, code in blocks().items():
        if heading != "torchmetrics and torch-uncertainty":
            assert len(code.splitlines()) < 15, heading
