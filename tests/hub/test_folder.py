"""Saved networks predict the same when they are read back; what cannot be saved raises a UserError."""

import dataclasses
import io
import json
import math
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from subprocess import PIPE
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from huggingface_hub import ModelCard
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torchvision import models

import mixmo
from mixmo.calibration.posthoc import calibrate
from mixmo.cli.app import main
from mixmo.models import Ensemble
from mixmo.models.metadata import About
from mixmo.storage import checksums
from mixmo.utils.errors import UserError

ABOUT = About(
    (3, 32, 32),
    (0.5, 0.4, 0.3),
    (0.2, 0.2, 0.2),
    classes=("cat", "dog", "owl"),
    resize=36,
    dataset="pets",
    scores={"top1": 0.875, "nll": 0.25},
)


def fitted():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (200,), generator=generator)
    logits = torch.randn(2, 200, 3, generator=generator) + 2 * nn.functional.one_hot(labels, 3)
    return calibrate(logits, labels, risk=0.3)


def own_backbone() -> nn.Module:
    pool = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), *pool, nn.Linear(8, 3))


def make(kind: str) -> Ensemble:
    torch.manual_seed(0)
    if kind == "timm":
        return mixmo.wrap(timm.create_model("test_vit", num_classes=3, img_size=32)).eval()
    if kind == "converted":
        return mixmo.convert(mixmo.wrap(timm.create_model("test_resnet", num_classes=5)), members=3, classes=3).eval()
    if kind == "timm, folded":
        return mixmo.fold(mixmo.wrap(timm.create_model("test_resnet", num_classes=3)))
    if kind == "torchvision":
        return mixmo.convert(mixmo.wrap(models.shufflenet_v2_x0_5(num_classes=5)), members=3, classes=3).eval()
    if kind == "torchvision, folded":
        return mixmo.fold(mixmo.wrap(models.mnasnet0_5(num_classes=3)))  # whose weights have a version
    given: dict[str, Any] = {
        "three": {"members": 3},
        "single": {"members": 1},
        "shared encoder": {"encoders": 1},
        "shared head": {"heads": 1},
        "concat": {"concat": True},
        "folded": {"members": 3},
    }[kind]
    net = mixmo.create("wrn16_2" if kind == "three" else "wrn10_1", classes=3, **given).eval()
    return mixmo.fold(net) if kind == "folded" else net


KINDS = ("three", "single", "shared encoder", "shared head", "concat", "folded")
KINDS += ("timm", "converted", "timm, folded", "torchvision", "torchvision, folded")


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_network_predicts_the_same(kind: str, tmp_path: Path):
    net, images = make(kind), torch.randn(2, 3, 32, 32)
    folder = mixmo.save_pretrained(net, tmp_path / "model", about=ABOUT, calibration=fitted())
    assert {path.name for path in folder.iterdir()} == {"README.md", checksums.NAME, "config.json", "model.safetensors"}
    again = mixmo.from_pretrained(folder)
    assert not again.training
    assert all(parameter.requires_grad for parameter in again.parameters())  # it can be trained further
    before, after = mixmo.predict(net, images).members, mixmo.predict(again, images).members
    torch.testing.assert_close(after, before, atol=1e-6, rtol=0)
    assert (again.members, again.num_heads, again.about.calibration) == (net.members, net.num_heads, fitted())
    assert again.about == dataclasses.replace(ABOUT, calibration=fitted())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]  # nothing else is left
    second = mixmo.save_pretrained(again, tmp_path / "second")  # with its metadata
    assert (second / "config.json").read_text() == (folder / "config.json").read_text()


def test_class_names_of_any_bytes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Class folders can have names of any bytes; and the card is UTF-8 wherever it is written."""
    monkeypatch.setattr(io, "text_encoding", lambda encoding, *_: encoding or "ascii")
    about = dataclasses.replace(ABOUT, classes=("cat", "猫", "a\udcff"))
    folder = mixmo.save_pretrained(mixmo.create("wrn10_1", classes=3), tmp_path / "model", about=about)
    assert mixmo.load(folder).about == about
    assert "cat, 猫, a\\udcff" in (folder / "README.md").read_text(encoding="utf-8")


def test_the_arguments_of_create_are_saved(tmp_path: Path):
    for name in ("wrn22_1", "preactresnet18_1"):
        folder = mixmo.save_pretrained(mixmo.create(name, classes=7, channels=1), tmp_path / name)
        config = json.loads((folder / "config.json").read_text())["architecture"]
        assert (config["create"], config["classes"], config["members"], config["channels"]) == (name, 7, 2, 1)


def test_your_own_backbone_must_be_given_again(tmp_path: Path):
    net, images = mixmo.wrap(own_backbone(), size=(3, 16, 16)).eval(), torch.randn(2, 3, 16, 16)
    folder = mixmo.save_pretrained(net, tmp_path / "model")
    with pytest.raises(UserError, match="model="):
        mixmo.from_pretrained(folder)
    again = mixmo.from_pretrained(folder, own_backbone())
    assert torch.equal(again.each(images), net.each(images))
    assert again.about is None
    other = own_backbone()
    other[5] = nn.Linear(8, 4)
    with pytest.raises(UserError, match="architecture"):
        mixmo.from_pretrained(folder, other)
    with pytest.raises(UserError, match="head layer '5'"):
        mixmo.from_pretrained(folder, nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 14 * 14, 3)))


def test_a_torchvision_backbone_is_found_by_its_weights(tmp_path: Path):
    """Among those of its file; one that predicts otherwise with the same weights must be given."""
    model = models.squeezenet1_1(num_classes=3)
    folder = mixmo.save_pretrained(mixmo.wrap(model), tmp_path / "as it is", about=ABOUT, half=True)
    config = json.loads((folder / "config.json").read_text())["architecture"]
    assert (config["torchvision"], config["options"]) == ("squeezenet1_1", {"num_classes": 3})
    card = (folder / "README.md").read_text()
    assert "squeezenet1_1 with 2 members." in card
    assert "mixmo predict as it is photos/" in card
    model.features[2] = nn.Identity()  # was a pooling
    folder = mixmo.save_pretrained(mixmo.wrap(model), tmp_path / "changed")
    with pytest.raises(UserError, match="SqueezeNet"):
        mixmo.from_pretrained(folder)
    mixmo.from_pretrained(folder, model)


def test_the_command_line_builds_torchvision_backbones(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    saved = mixmo.save_pretrained(mixmo.wrap(models.squeezenet1_1(num_classes=3)), tmp_path / "saved", about=ABOUT)
    for place, label in enumerate(("cat", "dog", "owl")):
        (tmp_path / "pets" / label).mkdir(parents=True)
        Image.new("RGB", (40, 40), (80 * place,) * 3).save(tmp_path / "pets" / label / "1.png")
    for words in (["predict", saved, tmp_path / "pets"], ["eval", saved, "--on", tmp_path / "pets"]):
        assert main([*map(str, words), "--device", "cpu"]) == 0
    assert main(["export", str(saved), "--to", str(tmp_path / "net.pt2")]) == 0
    out = capsys.readouterr().out
    assert "pets/owl/1.png," in out
    assert "ensemble" in out
    assert (tmp_path / "net.pt2").is_file()


def test_tied_and_half_precision_weights_can_be_saved(tmp_path: Path):
    net = mixmo.create("wrn10_1", classes=3).eval()
    net.heads[1].weight = net.heads[0].weight
    mixmo.save_pretrained(net, tmp_path / "tied")
    half = mixmo.create("wrn10_1", classes=3).bfloat16()
    folder = mixmo.save_pretrained(half, tmp_path / "half")
    assert load_file(folder / "model.safetensors")["heads.0.weight"].dtype == torch.bfloat16


def test_the_model_card_has_scores_and_usage(tmp_path: Path):
    net = mixmo.create("wrn10_1", classes=3)
    folder = mixmo.save_pretrained(net, tmp_path / "pets", about=ABOUT, calibration=fitted(), name="me/pets")
    card = ModelCard.load(folder / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("mixmo", "image-classification")
    found = {result.metric_name: (result.dataset_name, result.metric_value) for result in card.data.eval_results}
    assert found == {"Top1": ("pets", 0.875), "NLL": ("pets", 0.25)}
    for words in (
        'mixmo.from_pretrained("me/pets")',
        "wrn10_1 with 2 members",
        "| Top1 | 0.8750 |",
        "3 classes: cat, dog",
    ):
        assert words in card.text
    assert "Fitted on 200 held-out images: temperature" in card.text
    plain = mixmo.save_pretrained(net, tmp_path / "plain")
    assert ModelCard.load(plain / "README.md").data.eval_results is None


def test_a_pushed_network_is_read_back_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder stands for the Hub."""
    arrived = tmp_path / "arrived"

    class Hub:
        def __init__(self, token: str | None = None) -> None:
            assert token == "secret"

        def create_repo(self, name: str, private: bool, exist_ok: bool) -> str:
            assert (name, private, exist_ok) == ("me/pets", True, True)
            return "https://hub/me/pets"

        def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> None:
            arrived.mkdir()
            for path in Path(folder_path).iterdir():
                (arrived / path.name).write_bytes(path.read_bytes())

    def download(name: str, **given: Any) -> str:
        assert name == "me/pets"
        assert not any(".bin" in pattern or pattern == "*" for pattern in given["allow_patterns"])
        (tmp_path / "downloaded").mkdir()
        for path in arrived.iterdir():
            if any(fnmatch(path.name, pattern) for pattern in given["allow_patterns"]):
                shutil.copy(path, tmp_path / "downloaded")
        return str(tmp_path / "downloaded")

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    net = mixmo.create("wrn10_1", classes=3).eval()
    assert mixmo.push_to_hub(net, "me/pets", about=ABOUT, private=True, token="secret") == "https://hub/me/pets"
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(mixmo.load("me/pets").each(images), net.each(images))
    assert (tmp_path / "downloaded" / checksums.NAME).read_text() == (arrived / checksums.NAME).read_text()
    assert 'from_pretrained("me/pets")' in (arrived / "README.md").read_text()
    monkeypatch.setattr(Hub, "create_repo", lambda *_, **__: (_ for _ in ()).throw(OSError("401 unauthorised")))
    with pytest.raises(UserError, match="401"):
        mixmo.push_to_hub(net, "me/pets", token="secret")
    with pytest.raises(UserError, match="OWNER/NAME"):
        mixmo.push_to_hub(net, "pets")


def test_empty_folders_links_and_home_can_be_saved_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The current one, one behind a link, and one in the home folder."""
    net, images = mixmo.create("wrn10_1", classes=3).eval(), torch.rand(2, 3, 32, 32)
    (here := tmp_path / "here").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for given, place in ((".", here), ("../link/", tmp_path / "target"), ("~/net", tmp_path / "home" / "net")):
        mixmo.save_pretrained(net, given)
        assert {path.name for path in place.iterdir()} == {
            "config.json",
            "model.safetensors",
            "README.md",
            "SHA256SUMS",
        }
        torch.testing.assert_close(mixmo.load(given)(images), net(images))
    assert "# here\n" in (here / "README.md").read_text()
    assert (tmp_path / "link").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"here", "target", "link", "home"}


def test_wrong_arguments_raise_and_write_nothing(tmp_path: Path):
    net = mixmo.create("wrn10_1", classes=4)
    saved = mixmo.save_pretrained(net, tmp_path / "saved")
    grey = About((1, 32, 32), (0.5,), (0.2,))
    for target, options, word in (
        (saved, {}, "exists"),
        (tmp_path / "a", {"about": ABOUT}, "4 classes"),
        (tmp_path / "a", {"about": grey}, "3 channels"),
        (tmp_path / "a", {"calibration": fitted()}, "about="),
        (saved / "config.json" / "a", {}, "written"),
    ):
        with pytest.raises(UserError, match=word):
            mixmo.save_pretrained(net, target, **options)
    with pytest.raises(UserError, match="3 channels"):
        mixmo.save_pretrained(make("timm"), tmp_path / "a", about=grey)
    net.core.stages[0] = nn.Identity()
    with pytest.raises(UserError, match=r"mixmo\.create"):
        mixmo.save_pretrained(net, tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


@pytest.mark.filterwarnings("ignore:exported unfolded")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_diverged_network_is_neither_saved_nor_exported(tmp_path: Path, value: float):
    net = mixmo.create("wrn10_1", classes=3)
    next(net.core.parameters()).data.fill_(value)
    for write in (
        lambda: mixmo.save_pretrained(net, tmp_path / "a"),
        lambda: mixmo.export(net, tmp_path / "a.pt2", size=(3, 32, 32)),
        lambda: mixmo.export(net, tmp_path / "a.pt2", size=(3, 32, 32), precision="bf16"),
    ):
        with pytest.raises(UserError, match="NaN"):
            write()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    net = mixmo.create("wrn10_1", classes=3)

    def full(tensors: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(UserError, match="No space left"):
        mixmo.save_pretrained(net, tmp_path / "a")
    monkeypatch.setattr("zipfile.ZipFile.writestr", lambda *_: full(None, Path(tmp_path / "half")))
    with pytest.raises(UserError, match="No space left"):
        mixmo.export(net, tmp_path / "a.pt2", size=(3, 32, 32))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half"]


def test_leftovers_of_a_killed_process_are_removed_and_a_running_one_raises(tmp_path: Path):
    net, target = mixmo.create("wrn10_1", classes=3), tmp_path / "a"
    code = "import os, sys; from pathlib import Path; from mixmo.storage.files import staging_folder\n"
    code += "with staging_folder(Path(sys.argv[1])) as d:\n"
    code += "    (d / 'half').touch(); print('there', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, target], stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "there\n"
        with pytest.raises(UserError, match="another process"):
            mixmo.save_pretrained(net, target)
        other.kill()
    assert (tmp_path / ".a.draft" / "half").exists()
    mixmo.save_pretrained(net, target)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
