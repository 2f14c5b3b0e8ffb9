"""Saved folders that are damaged, hostile or of another library raise a UserError; no pickle is read."""

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torchvision import models

import mixmo
from mixmo.calibration.posthoc import Calibration
from mixmo.models.metadata import About
from mixmo.storage import checksums
from mixmo.utils.errors import UserError

ABOUT = About((3, 32, 32), (0.5, 0.4, 0.3), (0.2, 0.2, 0.2), classes=("cat", "dog", "owl"))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return mixmo.save_pretrained(mixmo.create("wrn10_1", classes=3), tmp_path / "saved")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_flipped_bit_raises(name: str, tmp_path: Path):
    folder = mixmo.save_pretrained(mixmo.create("wrn10_1", classes=3), tmp_path / "model", about=ABOUT)
    content = bytearray((folder / name).read_bytes())
    place = len(content) - 100 if name == "model.safetensors" else content.index(b"0.4")
    content[place + 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=name):
        mixmo.load(folder)
    (folder / checksums.NAME).unlink()  # which is optional
    assert (mixmo.load(folder).about == ABOUT) == (name == "model.safetensors")


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("the pickle was read",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.safetensors"])
def test_a_pickle_is_never_read(name: str, saved: Path):
    (saved / "model.safetensors").unlink()
    (saved / name).write_bytes(pickle.dumps(Bomb()))
    for where in (saved, saved / name):
        with pytest.raises(UserError, match="model"):
            mixmo.load(where)


def test_weights_of_another_architecture_raise(saved: Path):
    (saved / checksums.NAME).unlink()
    config = json.loads((saved / "config.json").read_text())
    config["architecture"]["create"] = "wrn16_1"
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"core\.stages\.0\.1\.bn1\.weight"):
        mixmo.load(saved)
    config["architecture"]["create"] = "wrn10_2"
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"\(32, 16, 3, 3\)"):
        mixmo.load(saved)


def test_missing_and_unknown_weights_raise(saved: Path):
    (saved / checksums.NAME).unlink()
    tensors = load_file(saved / "model.safetensors")
    tensors["extra"] = tensors.pop("heads.1.bias")
    save_file(tensors, saved / "model.safetensors")
    with pytest.raises(UserError, match=r"heads.1.bias.*extra"):
        mixmo.load(saved)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "{}",
        '{"mixmo": "0.1.0"}',
        '{"mixmo": "0", "architecture": {"create": "wrn10_1", "folded": false, "x": 1}, "about": null}',
        '{"mixmo": "0", "about": null, "architecture": {"timm": "hf-hub:me/evil", "options": {}, "folded": false, '
        '"wrap": {"members": 2, "stem": ["a"], "head": ["b"], "size": [3, 32, 32]}}}',
    ],
)
def test_a_damaged_config_raises(saved: Path, content: str):
    (saved / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json"):
        mixmo.load(saved)


def test_folders_without_a_network_and_files_raise(saved: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for where in (tmp_path / "empty", saved / "config.json"):
        with pytest.raises(UserError, match="saved"):
            mixmo.load(where)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("classes", ["a"]),
        ("classes", ["a", 2, "c"]),
        ("size", [1, 32, 32]),
        ("std", [0.2, 0.2, 0.0]),
        ("resize", 8),
        ("calibration", {}),
        ("calibration", Calibration().to_dict() | {"temperature": -1.0}),
    ],
)
def test_metadata_that_do_not_fit_raise(saved: Path, field: str, value: Any):
    config = json.loads((saved / "config.json").read_text())
    config["about"] = ABOUT.to_dict() | {field: value}
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"config\.json: "):
        mixmo.load(saved)


@pytest.mark.parametrize(
    ("library", "changes"),
    [
        ("timm", {"options": {"checkpoint_path": "model.bin"}}),
        ("torchvision", {"options": {"weights": "DEFAULT"}}),
        ("torchvision", {"torchvision": "fcn_resnet50"}),
    ],
)
def test_options_that_read_files_or_download_raise(tmp_path: Path, library: str, changes: dict[str, Any]):
    model = timm.create_model("test_vit", img_size=32) if library == "timm" else models.squeezenet1_1()
    saved = mixmo.save_pretrained(mixmo.wrap(model), tmp_path / "saved")
    config = json.loads((saved / "config.json").read_text())
    config["architecture"] |= changes
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=rf"config\.json: .*{library}"):
        mixmo.load(saved)


def test_weights_of_mixed_precision_predict_the_same(saved: Path):
    (saved / checksums.NAME).unlink()
    images, expected = torch.randn(2, 3, 32, 32), mixmo.load(saved)
    tensors = load_file(saved / "model.safetensors")
    tensors["heads.1.weight"] = tensors["heads.1.weight"].double()
    save_file(tensors, saved / "model.safetensors")
    assert torch.equal(mixmo.predict(mixmo.load(saved), images).logits, mixmo.predict(expected, images).logits)


def test_a_timm_that_cannot_be_imported_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torch and torchvision were of different builds."""
    mixmo.save_pretrained(mixmo.wrap(timm.create_model("test_vit", img_size=32)), tmp_path / "net")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path / "broken")
    monkeypatch.delitem(sys.modules, "timm")
    with pytest.raises(UserError, match="timm cannot be imported"):
        mixmo.load(tmp_path / "net")
