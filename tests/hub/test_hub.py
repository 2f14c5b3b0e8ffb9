"""Saved networks: the same answers after every journey, and what is refused."""

import dataclasses
import io
import json
import math
import pickle
import re
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
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision import models

import mixmo
from mixmo.calibration.posthoc import Calibration, calibrate
from mixmo.cli.app import main
from mixmo.data.types import Dataset
from mixmo.engine import Runtime, train
from mixmo.models import Ensemble
from mixmo.models.metadata import About
from mixmo.recipes import named
from mixmo.runs.directory import Run
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
def test_there_and_back(kind: str, tmp_path: Path):
    net, images = make(kind), torch.randn(2, 3, 32, 32)
    folder = mixmo.save_pretrained(net, tmp_path / "model", about=ABOUT, calibration=fitted())
    assert {path.name for path in folder.iterdir()} == {"README.md", checksums.NAME, "config.json", "model.safetensors"}
    again = mixmo.from_pretrained(folder)
    assert not again.training
    assert all(parameter.requires_grad for parameter in again.parameters())  # it can be trained further
    before, after = mixmo.predict(net, images).members, mixmo.predict(again, images).members
    torch.testing.assert_close(after, before, atol=1e-6, rtol=0)
    assert (again.members, again.answers, again.about.calibration) == (net.members, net.answers, fitted())
    assert again.about == dataclasses.replace(ABOUT, calibration=fitted())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]  # nothing else is left
    second = mixmo.save_pretrained(again, tmp_path / "second")  # what it is about travels on
    assert (second / "config.json").read_text() == (folder / "config.json").read_text()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_bit_that_was_flipped(name: str, tmp_path: Path):
    folder = mixmo.save_pretrained(mixmo.create("wrn10_1", classes=3), tmp_path / "model", about=ABOUT)
    content = bytearray((folder / name).read_bytes())
    place = len(content) - 100 if name == "model.safetensors" else content.index(b"0.4")
    content[place + 2] ^= 1
    (folder / name).write_bytes(content)
    says = rf"model/{name} is not as it was when it was saved: .* from a copy; or remove SHA256SUMS there"
    with pytest.raises(UserError, match=says):
        mixmo.load(folder)
    (folder / checksums.NAME).unlink()  # as it is in folders of earlier versions
    assert (mixmo.load(folder).about == ABOUT) == (name == "model.safetensors")


def test_names_that_a_text_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Class folders can have names of any bytes; and the card is UTF-8 wherever it is written."""
    monkeypatch.setattr(io, "text_encoding", lambda encoding, *_: encoding or "ascii")
    about = dataclasses.replace(ABOUT, classes=("cat", "猫", "a\udcff"))
    folder = mixmo.save_pretrained(mixmo.create("wrn10_1", classes=3), tmp_path / "model", about=about)
    assert mixmo.load(folder).about == about
    assert "cat, 猫, a\\udcff" in (folder / "README.md").read_text(encoding="utf-8")


def test_the_name_of_a_network_is_found_again(tmp_path: Path):
    for name in ("wrn22_1", "preactresnet18_1"):
        folder = mixmo.save_pretrained(mixmo.create(name, classes=7, channels=1), tmp_path / name)
        config = json.loads((folder / "config.json").read_text())["architecture"]
        assert (config["create"], config["classes"], config["members"], config["channels"]) == (name, 7, 2, 1)


def test_a_backbone_of_one_s_own(tmp_path: Path):
    net, images = mixmo.wrap(own_backbone(), size=(3, 16, 16)).eval(), torch.randn(2, 3, 16, 16)
    folder = mixmo.save_pretrained(net, tmp_path / "model")
    with pytest.raises(UserError, match="around a Sequential that mixmo cannot build; give the bare model"):
        mixmo.from_pretrained(folder)
    again = mixmo.from_pretrained(folder, own_backbone())
    assert torch.equal(again.each(images), net.each(images))
    assert again.about is None
    other = own_backbone()
    other[5] = nn.Linear(8, 4)
    with pytest.raises(UserError, match=r"of another architecture: .*5.*\(3, 8\) there and \(4, 8\) in the network"):
        mixmo.from_pretrained(folder, other)
    with pytest.raises(
        UserError, match=r"not the Sequential that the network was wrapped around: unknown head layer '5'"
    ):
        mixmo.from_pretrained(folder, nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 14 * 14, 3)))


def test_a_torchvision_backbone_is_found_by_its_weights(tmp_path: Path):
    """Among those of its file; the bare model must be given for one that answers otherwise with the same weights."""
    model = models.squeezenet1_1(num_classes=3)
    folder = mixmo.save_pretrained(mixmo.wrap(model), tmp_path / "as it is", about=ABOUT, half=True)
    config = json.loads((folder / "config.json").read_text())["architecture"]
    assert (config["torchvision"], config["options"]) == ("squeezenet1_1", {"num_classes": 3})
    card = (folder / "README.md").read_text()
    assert "squeezenet1_1 with 2 members." in card
    assert "mixmo predict as it is photos/" in card
    model.features[2] = nn.Identity()  # was a pooling
    folder = mixmo.save_pretrained(mixmo.wrap(model), tmp_path / "changed")
    with pytest.raises(UserError, match="around a SqueezeNet that mixmo cannot build; give the bare model"):
        mixmo.from_pretrained(folder)
    mixmo.from_pretrained(folder, model)


def test_a_torchvision_backbone_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    saved = mixmo.save_pretrained(mixmo.wrap(models.squeezenet1_1(num_classes=3)), tmp_path / "saved", about=ABOUT)
    for place, label in enumerate(("cat", "dog", "owl")):
        (tmp_path / "pets" / label).mkdir(parents=True)
        Image.new("RGB", (40, 40), (80 * place,) * 3).save(tmp_path / "pets" / label / "1.png")
    for words in (["predict", saved, tmp_path / "pets"], ["eval", saved, "--on", tmp_path / "pets"]):
        assert main([*map(str, words), "--device", "cpu"]) == 0
    assert main(["export", str(saved), "--to", str(tmp_path / "net.pt2")]) == 0
    said = capsys.readouterr().out
    assert "pets/owl/1.png," in said
    assert "ensemble" in said
    assert (tmp_path / "net.pt2").is_file()


def test_weights_may_be_tied_and_of_half_precision(tmp_path: Path):
    net = mixmo.create("wrn10_1", classes=3).eval()
    net.heads[1].weight = net.heads[0].weight
    mixmo.save_pretrained(net, tmp_path / "tied")
    half = mixmo.create("wrn10_1", classes=3).bfloat16()
    folder = mixmo.save_pretrained(half, tmp_path / "half")
    assert load_file(folder / "model.safetensors")["heads.0.weight"].dtype == torch.bfloat16


def test_the_model_card(tmp_path: Path):
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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    recipe = named("digits/cut-mixmo").replace(epochs=2, width=1, batch_size=128, validation=300)
    return train(recipe, tmp_path_factory.mktemp("hub") / "run", Runtime(device="cpu", quiet=True))


def test_load_a_run(run: Run, digits: Dataset, tmp_path: Path):
    net = mixmo.load(run.path)
    about = net.about
    assert about.classes == digits.classes
    assert (about.size, about.resize, about.dataset) == ((1, 8, 8), None, "digits")
    assert about.scores["top1"] == run.json("scores.json")["last"]["ensemble"]["top1"]
    assert about.calibration.samples == 300
    prediction = mixmo.predict(net, digits.test.images)  # uint8: it knows its normalisation
    torch.testing.assert_close(prediction.logits, run.logits()[0], atol=1e-4, rtol=1e-4)
    covered = prediction.sets[torch.arange(360), digits.test.labels].double().mean().item()
    assert covered == pytest.approx(0.9, abs=0.06)
    folder = mixmo.save_pretrained(net, tmp_path / "model")
    again = mixmo.predict(mixmo.load(folder), digits.test.images)
    torch.testing.assert_close(again.probs, prediction.probs, atol=1e-6, rtol=1e-5)
    assert torch.equal(again.sets, prediction.sets)
    assert torch.equal(again.abstain, prediction.abstain)


def test_load_a_run_in_shards_of_half_precision(digits: Dataset, tmp_path: Path):
    recipe = named("digits/cut-mixmo").replace(epochs=1, width=1, batch_size=256)
    run = train(recipe, tmp_path / "run", Runtime(device="cpu", quiet=True, compact=True, shard_mb=0.1))
    assert len(list(run.path.glob("last-*.safetensors"))) > 1
    net = mixmo.load(run.path)
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    logits = mixmo.predict(net, digits.test.images).logits
    torch.testing.assert_close(logits, run.logits()[0], atol=1e-4, rtol=1e-4)
    again = mixmo.load(mixmo.save_pretrained(net, tmp_path / "saved"))
    torch.testing.assert_close(mixmo.predict(again, digits.test.images).logits, logits, atol=1e-5, rtol=1e-5)


def test_a_run_with_the_weights_of_another(run: Run, runs: list[Run], tmp_path: Path):
    for name in ("recipe.yaml", "dataset.json", "scores.json"):
        (tmp_path / name).write_bytes((run.path / name).read_bytes())
    (tmp_path / "last.safetensors").write_bytes((runs[1].path / "last.safetensors").read_bytes())
    with pytest.raises(
        UserError, match=r"last.safetensors holds .* another architecture: encoders.1.weight is missing"
    ):
        mixmo.load(tmp_path)


def test_a_run_without_validation_images_is_not_calibrated(runs: list[Run]):
    assert mixmo.load(runs[0].path).about.calibration is None
    assert mixmo.load(runs[1].path, "best").members == 1


def test_a_calibration_is_never_lost_in_silence(run: Run, tmp_path: Path):
    """LabelledLogits without it look like answers with it."""
    copy = Run(shutil.copytree(run.path, tmp_path / "run"))
    path = copy.path / "logits-last.safetensors"
    whole = load_file(path)
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(UserError, match=r"logits-last.safetensors is not as it was when it was saved"):
        mixmo.load(copy.path)
    (copy.path / checksums.NAME).unlink()
    save_file(whole | {"validation_logits": whole["validation_logits"] * math.nan}, path)
    with pytest.raises(UserError, match="NaN or infinite values"):
        mixmo.load(copy.path)
    path.unlink()
    with pytest.warns(UserWarning, match="logits-last.safetensors is missing, so .* are not calibrated"):
        assert mixmo.load(copy.path).about.calibration is None


def test_a_run_that_describes_its_images_wrongly(run: Run, tmp_path: Path):
    copy = Run(shutil.copytree(run.path, tmp_path / "run"))
    (copy.path / checksums.NAME).unlink()
    before = run.json("dataset.json")
    for field, value, message in (
        ("size", [1, 10**9, 8], "size says 1000000000 pixels a side"),
        ("std", [0], "pixels are divided by it"),
    ):
        (copy.path / "dataset.json").write_text(json.dumps(before | {field: value}))
        with pytest.raises(UserError, match=rf"dataset\.json: .*{message}"):
            mixmo.load(copy.path)


def test_the_examples_in_the_docs(run: Run, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As they are written there, on the digits; the last one on a network for large images."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "prediction.md").read_text()
    first, second, third, saving = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "cut2").symlink_to(run.path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"mixmo": mixmo, "images": digits.test.images[:9]}
    names |= {"held_out_images": digits.train.images[:100], "held_out_labels": digits.train.labels[:100]}
    for code in (first, second, third):
        exec(code, names)
    assert names["prediction"].sets.shape == (9, 10)
    assert mixmo.load("saved").about.calibration == names["calibration"]
    assert names["fast"].logits.shape == (1, 9, 10)
    large: dict[str, Any] = {"mixmo": mixmo, "mean": (0.5,) * 3, "std": (0.2,) * 3, "names": ("hen", "owl")}
    large |= {"net": mixmo.create("wrn10_1", classes=2), "calibration": names["calibration"]}
    exec(saving, large)
    assert large["net"].about.scores == {"top1": 0.81}


def test_push_to_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The hub is played by a folder; what arrives there is read back by its name."""
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
        (tmp_path / "had").mkdir()
        for path in arrived.iterdir():
            if any(fnmatch(path.name, pattern) for pattern in given["allow_patterns"]):
                shutil.copy(path, tmp_path / "had")
        return str(tmp_path / "had")

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    net = mixmo.create("wrn10_1", classes=3).eval()
    assert mixmo.push_to_hub(net, "me/pets", about=ABOUT, private=True, token="secret") == "https://hub/me/pets"
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(mixmo.load("me/pets").each(images), net.each(images))
    assert (tmp_path / "had" / checksums.NAME).read_text() == (arrived / checksums.NAME).read_text()
    assert 'from_pretrained("me/pets")' in (arrived / "README.md").read_text()
    monkeypatch.setattr(Hub, "create_repo", lambda *_, **__: (_ for _ in ()).throw(OSError("401 unauthorised")))
    with pytest.raises(UserError, match=r"me/pets could not be uploaded \(401 unauthorised\); see `hf auth login`"):
        mixmo.push_to_hub(net, "me/pets", token="secret")
    with pytest.raises(UserError, match="'pets' is no name on the Hub; write OWNER/NAME"):
        mixmo.push_to_hub(net, "pets")


def test_the_hub_is_not_there(monkeypatch: pytest.MonkeyPatch):
    def download(name: str, **given: Any) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UserError, match=r"me/nothing is no folder here, .* from the Hub \(no route to host\)"):
        mixmo.load("me/nothing")
    with pytest.raises(UserError, match="/a/b/c does not exist; give a saved folder, a run directory or"):
        mixmo.load("/a/b/c")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return mixmo.save_pretrained(mixmo.create("wrn10_1", classes=3), tmp_path / "saved")


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("the pickle was read",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.pkl", "last.ckpt"])
def test_a_pickle_is_not_read(name: str, saved: Path, tmp_path: Path):
    (saved / "model.safetensors").unlink()
    (saved / name).write_bytes(pickle.dumps(Bomb()))
    for load in (mixmo.load, mixmo.from_pretrained):
        with pytest.raises(UserError, match=f"{name} is a pickle, which can run anything when it is read"):
            load(saved)
        with pytest.raises(UserError, match=f"{name} is a pickle"):
            load(saved / name)


def test_a_pickle_under_another_name(saved: Path):
    (saved / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match=r"model.safetensors is damaged"):
        mixmo.load(saved)


def test_weights_of_another_architecture(saved: Path):
    (saved / checksums.NAME).unlink()
    config = json.loads((saved / "config.json").read_text())
    config["architecture"]["create"] = "wrn16_1"
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UserError, match=r"another architecture: core\.stages\.0\.1\.bn1\.weight is missing there.* more"
    ):
        mixmo.load(saved)
    config["architecture"]["create"] = "wrn10_2"
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"is \(16, 16, 3, 3\) there and \(32, 16, 3, 3\) in the network"):
        mixmo.load(saved)


def test_weights_that_are_not_all_there(saved: Path):
    (saved / checksums.NAME).unlink()
    tensors = load_file(saved / "model.safetensors")
    tensors["extra"] = tensors.pop("heads.1.bias")
    save_file(tensors, saved / "model.safetensors")
    with pytest.raises(UserError, match=r"heads.1.bias is missing there; extra is unknown to the network; build"):
        mixmo.load(saved)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "config.json cannot be read"),
        ("{}", "config.json is of another library"),
        ("[" * 100_000, "config.json cannot be read"),
        ('{"mixmo": ' + "9" * 5000 + "}", "config.json cannot be read"),
        ('{"mixmo": "0.1.0"}', "config.json does not describe a network"),
        ('{"mixmo": "0", "architecture": {"create": "wrn10_1", "folded": false, "x": 1}, "about": null}', "describe"),
        (
            '{"mixmo": "0", "about": null, "architecture": {"timm": "hf-hub:me/evil", "options": {}, "folded": false, '
            '"wrap": {"members": 2, "stem": ["a"], "head": ["b"], "size": [3, 32, 32]}}}',
            "this timm knows no 'hf-hub:me/evil'",
        ),
    ],
)
def test_a_config_that_is_none(saved: Path, content: str, message: str):
    (saved / "config.json").write_text(content)
    with pytest.raises(UserError, match=message):
        mixmo.load(saved)


def test_empty_folders_are_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
    for name in ("a\0b", "n" * 300):
        with pytest.raises(UserError, match=r"; give a(nother)? path"):
            mixmo.save_pretrained(net, name)


def test_refusals(saved: Path, tmp_path: Path):
    net = mixmo.create("wrn10_1", classes=4)
    with pytest.raises(
        UserError, match="saved exists already and is not an empty folder; give a new one, or remove it"
    ):
        mixmo.save_pretrained(net, saved)
    with pytest.raises(UserError, match="there are 3 names for the 4 classes of the network"):
        mixmo.save_pretrained(net, tmp_path / "a", about=ABOUT)
    with pytest.raises(UserError, match="a calibration is saved with what the network is about"):
        mixmo.save_pretrained(net, tmp_path / "a", calibration=fitted())
    with pytest.raises(UserError, match=r"a Linear has no members; give it to mixmo.wrap first"):
        mixmo.save_pretrained(nn.Linear(2, 2), tmp_path / "a")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"a cannot be written \(.*\); make room, or name another place"):
        mixmo.save_pretrained(net, saved / "config.json" / "a")
    net.core.stages[0] = nn.Identity()
    with pytest.raises(UserError, match=r"is none that mixmo.create makes"):
        mixmo.save_pretrained(net, tmp_path / "a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty is no run directory and no saved network: it has neither"):
        mixmo.load(tmp_path / "empty")
    with pytest.raises(UserError, match="is a file; give the folder that"):
        mixmo.load(saved / "config.json")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("classes", ["a"], "there are 1 names for the 3 classes"),
        ("classes", "abc", "classes = abc; give a name for each class"),
        ("classes", ["a", 2, "c"], r"classes = \('a', 2, 'c'\); give a name for each class"),
        ("mean", [0.5, 0.5, math.nan], r"mean = \(0.5, 0.5, nan\); give the mean of pixels"),
        ("mean", [1e308] * 3, "give the mean of pixels"),
        ("std", [0.2, 0.2, 1e-320], "pixels are divided by it"),
        ("resize", 10**9, "resize says 1000000000 pixels a side"),
        ("resize", 8, "resize = 8; give a whole number, at least 32"),
        ("resize", "x", "resize = 'x'; give a whole number"),
        ("dataset", 5, "dataset = 5; give its name"),
        ("scores", {"nll": 0.8, "top1": "x"}, "give a number for each name"),
        ("scores", [0.8], "give a number for each name"),
        ("calibration", {}, "this is no calibration that mixmo saved"),
        ("calibration", {"temperature": math.nan}, "temperature = nan; logits are divided by it"),
        ("calibration", {"temperature": -1.0}, "temperature = -1.0; logits are divided by it"),
        ("calibration", {"temperature": "x"}, "temperature = 'x'; give a number"),
        ("calibration", {"samples": "x"}, "samples = 'x'; give a whole number"),
        ("calibration", {"conformal": {}}, "this is no calibration that mixmo saved"),
        ("calibration", {"conformal": {"method": "lac", "level": 0.9, "quantile": math.nan}}, "quantile = nan"),
        ("calibration", {"conformal": {"method": "lac", "level": 0.9, "quantile": "x"}}, "quantile = 'x'; give"),
        ("calibration", {"conformal": {"method": "lac", "level": 0.9, "quantile": 10**30}}, "quantile = 10+ of a"),
        ("calibration", {"conformal": {"method": [], "level": 0.9, "quantile": 0.5}}, "unknown conformal method"),
        ("mean", [True] * 3, "a value of mean or std = True; give a number"),
    ],
)
def test_a_hostile_config_is_named(saved: Path, field: str, value: Any, message: str):
    config = json.loads((saved / "config.json").read_text())
    if isinstance(value, dict) and field == "calibration" and value:
        value = Calibration().to_dict() | value
    config["about"] = ABOUT.to_dict() | {field: value}
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=rf"config\.json: .*{message}"):
        mixmo.load(saved)


def test_about_images_that_no_machine_holds(saved: Path, tmp_path: Path):
    huge = About((3, 32, 10**9), (0.5,) * 3, (0.2,) * 3)
    with pytest.raises(UserError, match=r"size says 1000000000 pixels a side; .* at most 16384"):
        mixmo.save_pretrained(mixmo.load(saved), tmp_path / "a", about=huge)
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"about": huge.to_dict()}))
    with pytest.raises(UserError, match=r"config\.json: size says 1000000000 pixels a side; .* at most 16384"):
        mixmo.load(saved)


def test_about_images_of_other_channels(saved: Path, tmp_path: Path):
    grey = About((1, 32, 32), (0.5,), (0.2,))
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"about": grey.to_dict()}))
    with pytest.raises(UserError, match=r"config\.json: size says 1 channels, and the network reads 3"):
        mixmo.load(saved)
    for kind in ("single", "timm"):
        with pytest.raises(UserError, match="size says 1 channels, and the network reads 3"):
            mixmo.save_pretrained(make(kind), tmp_path / "a", about=grey)


@pytest.mark.parametrize(
    ("library", "changes", "message"),
    [
        ("timm", {"options": {"checkpoint_path": "model.bin"}}, "'checkpoint_path' is no option of a saved network"),
        ("timm", {"options": {"num_classes": 10**12}}, "does not take num_classes .*memory"),
        ("torchvision", {"options": {"weights": "DEFAULT"}}, "'weights' is no option of a saved network"),
        ("torchvision", {"options": {"num_classes": 10**12}}, "does not take num_classes .*memory"),
        ("torchvision", {"torchvision": "fcn_resnet50"}, "this torchvision knows no 'fcn_resnet50'"),
    ],
)
def test_hostile_options_for_a_library(tmp_path: Path, library: str, changes: dict[str, Any], message: str):
    """One of them reads a pickle, one downloads."""
    saved = mixmo.save_pretrained(make(library), tmp_path / "saved")
    config = json.loads((saved / "config.json").read_text())
    config["architecture"] |= changes
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=rf"config\.json: .*{message}") as error:
        mixmo.load(saved)
    assert "\n" not in str(error.value)


def test_nothing_said_of_the_network(saved: Path):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"about": {}}))
    with pytest.raises(UserError, match=r"config\.json: this does not describe a network"):
        mixmo.load(saved)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_weights_of_another_type(saved: Path, dtype: torch.dtype):
    (saved / checksums.NAME).unlink()
    tensors = load_file(saved / "model.safetensors")
    tensors["heads.1.bias"] = tensors["heads.1.bias"].to(dtype)
    save_file(tensors, saved / "model.safetensors")
    with pytest.raises(UserError, match=rf"heads.1.bias is {dtype} there; build"):
        mixmo.load(saved)


def test_weights_of_mixed_precision(saved: Path):
    (saved / checksums.NAME).unlink()
    images, expected = torch.randn(2, 3, 32, 32), mixmo.load(saved)
    tensors = load_file(saved / "model.safetensors")
    tensors["heads.1.weight"] = tensors["heads.1.weight"].double()
    save_file(tensors, saved / "model.safetensors")
    assert torch.equal(mixmo.predict(mixmo.load(saved), images).logits, mixmo.predict(expected, images).logits)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_network_that_answers_nothing(saved: Path, tmp_path: Path, value: float):
    """The class of NaN is the first one, for whoever asks: nobody must be told it."""
    net = mixmo.load(saved)
    next(net.core.parameters()).data.fill_(value)
    with pytest.raises(UserError, match="answers NaN or infinite values to 2 of 2 images, which is no answer"):
        mixmo.predict(net, torch.randn(2, 3, 32, 32))
    with pytest.raises(UserError, match="answers NaN or infinite values; see whether its training diverged"):
        mixmo.save_pretrained(net, tmp_path / "a")
    for precision in ("fp32", "bf16"):
        with pytest.raises(UserError, match="answers NaN or infinite values; see whether its training diverged"):
            mixmo.export(net, tmp_path / "a.pt2", precision=precision, size=(3, 32, 32))
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "a.pt2").exists()


def test_a_full_disk_leaves_nothing(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also where the weights were being written: no word of a run that could be resumed."""
    net = mixmo.load(saved)

    def full(tensors: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(
        UserError, match=r"/a cannot be written \(No space left on device\); make room, or name another place$"
    ):
        mixmo.save_pretrained(net, tmp_path / "a")
    monkeypatch.setattr("zipfile.ZipFile.writestr", lambda *_: full(None, Path(tmp_path / "half")))
    with pytest.raises(
        UserError, match=r"a.pt2 cannot be written \(No space left on device\); make room, or name another place$"
    ):
        mixmo.export(net, tmp_path / "a.pt2", size=(3, 32, 32))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half", "saved"]


def test_about_that_is_wrong():
    with pytest.raises(UserError, match="mean has 1 and std 3 values for images of 3 channels"):
        dataclasses.replace(ABOUT, mean=(0.5,))
    with pytest.raises(UserError, match="give channels, height and width"):
        dataclasses.replace(ABOUT, size=(32, 32))


def test_a_timm_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torch and torchvision are of different builds: a RuntimeError out of torchvision."""
    mixmo.save_pretrained(make("timm"), tmp_path / "net")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path / "broken")
    monkeypatch.delitem(sys.modules, "timm")
    with pytest.raises(UserError, match=r"timm, which cannot be imported \(operator torchvision::nms does not exist\)"):
        mixmo.load(tmp_path / "net")


def test_a_saved_network_has_no_best_epoch():
    with pytest.raises(UserError, match="is no run directory and has no best epoch"):
        mixmo.load("cifar100/cut-mixmo-wrn28-4", which="best")


def test_what_a_killed_process_left_goes_and_a_living_one_is_left_alone(tmp_path: Path):
    net, target = mixmo.create("wrn10_1", classes=3), tmp_path / "a"
    code = "import os, sys; from pathlib import Path; from mixmo.files import drafts\n"
    code += "with drafts(Path(sys.argv[1])) as d: (d / 'half').touch(); print('there', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, target], stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "there\n"
        with pytest.raises(UserError, match="a is being written by another process; wait for it"):
            mixmo.save_pretrained(net, target)
        other.kill()
    assert (tmp_path / ".a.draft" / "half").exists()
    mixmo.save_pretrained(net, target)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
