"""The Python of the guides runs as printed; test_extend.py and test_loops.py run two more."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import mixmo
from mixmo.data.types import Dataset
from mixmo.runs.directory import Run

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (GUIDES / page).read_text(), flags=re.DOTALL)


def test_code_of_the_evaluate_guide_runs(
    runs: list[Run], digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "cut2").symlink_to(runs[0].path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"images": digits.test.images[:9]}
    names |= {"held_out_images": digits.train.images[:100], "held_out_labels": digits.train.labels[:100]}
    for code in blocks("evaluate.md"):
        exec(code, names)
    assert names["prediction"].sets.shape == (9, 10)
    assert mixmo.load("saved").about.calibration == names["calibration"]
    assert names["fast"].logits.shape == (1, 9, 10)


def test_code_of_the_train_guide_runs(runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").symlink_to(runs[0].path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(blocks("train.md")[1], names)
    assert len(names["curve"]) == 2
    assert names["logits_MNK"].shape == (2, 360, 10)


def test_code_of_the_data_guide_runs() -> None:
    names: dict[str, Any] = {"images_NHWC": torch.full((2, 32, 32, 3), 100, dtype=torch.uint8)}
    exec(blocks("data.md")[0], names)
    assert names["foggy"].shape == (2, 32, 32, 3)


def test_code_of_the_deploy_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving; the blocks about exported files are run by tests/exporters."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"mixmo": mixmo, "mean": (0.5,) * 3, "std": (0.2,) * 3, "names": ("hen", "owl")}
    names |= {"net": mixmo.create("wrn10_1", classes=2), "calibration": mixmo.Calibration(1.5)}
    exec(blocks("deploy.md")[0], names)
    assert names["net"].about.scores == {"top1": 0.81}
    assert names["net"].about.calibration.temperature == 1.5
    monkeypatch.setattr(torch, "compile", lambda call, **_: call)  # tests/inference/test_compiled.py compiles
    names["images"] = torch.randn(3, 3, 224, 224)
    exec(blocks("deploy.md")[1], names)
    assert names["prediction"].probs.shape == (3, 2)


def test_code_of_the_report_guide_runs(
    runs: list[Run], digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "cut").symlink_to(runs[0].path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"images": digits.test.images[:9]}
    exec(blocks("report.md")[0], names)
    assert (tmp_path / "cut.html").read_text() == names["page"].html
