"""The demonstration, shortened."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from mixmo.cli.app import main
from mixmo.cli.demo import two_images
from mixmo.data.types import Dataset


def test_demo_trains_once_prints_tables_and_draws_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["demo", "--out", str(tmp_path / "demo"), "--epochs", "1"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "head 0" in text
    assert "ratio-error" in text
    with Image.open(tmp_path / "demo" / "cut-mixmo.png") as picture:
        assert picture.size[0] > 400
    weights = (tmp_path / "demo" / "cut-mixmo" / "last.safetensors").stat().st_mtime_ns
    assert main(arguments) == 0
    assert (tmp_path / "demo" / "cut-mixmo" / "last.safetensors").stat().st_mtime_ns == weights
    assert "head 0" in capsys.readouterr().out


def test_two_images_are_of_different_classes(digits: Dataset) -> None:
    first, second, labels = two_images(digits)
    assert (labels[0] != labels[1]).all()
    assert sorted(labels[1].tolist()) == sorted(labels[0].tolist())
    assert not torch.equal(first, second)
