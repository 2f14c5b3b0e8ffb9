"""Networks that come with the package: found by name, made by benchmarks/ship.py, as accurate as stated."""

import json
import runpy
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image
from safetensors.torch import load_file

import mixmo
from mixmo import data
from mixmo.calibration.posthoc import Calibration
from mixmo.cli.app import main
from mixmo.data.types import Dataset
from mixmo.hub import shipped as module
from mixmo.metrics.temperature import random_halves
from mixmo.runs.directory import Run
from mixmo.storage import checksums
from mixmo.utils.errors import UserError

HERE = Path(__file__).resolve().parent
SAMPLES = sorted((HERE.parent / "samples").glob("*.png"))
NAME = "digits/cut-mixmo-wrn10-1"
ABOUT = mixmo.About((3, 32, 32), (0.5, 0.4, 0.3), (0.2, 0.2, 0.2), classes=("cat", "dog", "owl"))


def ship(*words: object) -> None:
    """benchmarks/ship.py with these arguments."""
    runpy.run_path(str(HERE.parents[1] / "benchmarks" / "ship.py"))["main"]([str(word) for word in words])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, runs: list[Run]) -> Path:
    """A root with one network, made of a small run on the digits, and three samples beside it."""
    folder = tmp_path_factory.mktemp("shipped")
    out, to = folder / "root", folder / "samples"
    given = ["--data", folder, "--out", out, "--samples", 3, "--samples-to", to]
    ship(runs[0].path, NAME, *given)
    return out


@pytest.fixture
def root(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Only that network is shipped, nothing lies in the working directory, and the Hub has nothing."""
    monkeypatch.setattr(module, "ROOT", made)
    monkeypatch.chdir(tmp_path)

    def download(name: str, **given: Any) -> str:
        raise OSError("404")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return made


def test_a_shipped_network_is_loaded_by_its_name(root: Path, digits: Dataset) -> None:
    assert mixmo.shipped() == [NAME]
    for net in (mixmo.load(NAME), mixmo.from_pretrained(NAME), mixmo.load(Path(NAME)), mixmo.load(root / NAME)):
        assert (net.members, net.training, net.about.classes) == (2, False, digits.classes)
    assert "wrn10_1 with 2 members. On digits: Top1 " in module.summary(NAME)


def test_weights_are_bfloat16_in_the_file_and_float32_in_memory(root: Path, runs: list[Run]) -> None:
    stored, trained = load_file(root / NAME / "model.safetensors"), mixmo.load(runs[0].path).state_dict()
    read = mixmo.load(NAME).state_dict()
    assert stored.keys() == trained.keys() == read.keys()
    for name, tensor in trained.items():
        matrix = tensor.dim() > 1
        assert stored[name].dtype == (torch.bfloat16 if matrix else tensor.dtype)
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor.bfloat16().float() if matrix else tensor)
    assert mixmo.load(NAME)(torch.zeros(1, 1, 8, 8)).dtype == torch.float32


def test_the_scores_are_those_of_the_saved_weights(root: Path, digits: Dataset) -> None:
    net, config = mixmo.load(NAME), json.loads((root / NAME / "config.json").read_text())
    prediction = mixmo.predict(net, digits.test.images)
    right_N = prediction.labels == digits.test.labels
    assert net.about.scores["top1"] == pytest.approx(right_N.double().mean().item(), abs=1e-9)
    log_NK = prediction.probs.double().log()
    assert net.about.scores["nll"] == pytest.approx(-log_NK[range(360), digits.test.labels].mean().item(), rel=1e-4)
    assert config["origin"]["first"] == {"images": 360, "top1": net.about.scores["top1"]}
    for member, logits_NK in zip(config["origin"]["members"], prediction.logits, strict=True):
        alone = (logits_NK.argmax(1) == digits.test.labels).double().mean().item()
        assert member["top1"] == pytest.approx(alone, abs=1e-9)


def test_the_calibration_is_of_the_test_images_and_judged_on_halves_of_them(root: Path, digits: Dataset) -> None:
    net, config = mixmo.load(NAME), json.loads((root / NAME / "config.json").read_text())
    logits, labels, fitted = mixmo.predict(net, digits.test.images).logits, digits.test.labels, net.about.calibration
    expected = mixmo.calibrate(logits, labels)
    assert fitted.samples == 360
    assert fitted.temperature == pytest.approx(expected.temperature, rel=1e-3)
    assert fitted.conformal.quantile == pytest.approx(expected.conformal.quantile, rel=1e-3)
    assert fitted.selective.threshold == pytest.approx(expected.selective.threshold, rel=1e-3)
    covered = []
    for seed in range(20):
        half, other = random_halves(360, seed)
        sets = mixmo.Prediction(logits[:, other], mixmo.calibrate(logits[:, half], labels[half])).sets
        covered += [each[label].item() for each, label in zip(sets, labels[other], strict=True)]
    text = f"mean over 20 splits: coverage of the sets {100 * sum(covered) / len(covered):.1f} %, "
    assert text in config["origin"]["calibration"]
    assert text in (root / NAME / "README.md").read_text()


def test_the_model_card_is_complete(root: Path, runs: list[Run]) -> None:
    card = ModelCard.load(root / NAME / "README.md")
    assert (card.data.license, card.data.datasets) == ("mit", ["digits"])
    assert {result.metric_name for result in card.data.eval_results} >= {"Top1", "NLL", "NLL, calibrated", "ECE"}
    minutes = runs[0].read_scores()["seconds"] / 60
    for words in (
        f'net = mixmo.from_pretrained("{NAME}")',
        f"mixmo predict {NAME} photos/",
        "| score | ensemble | member 0 | member 1 |",
        "Measured with the weights of this folder, in float32 on a CPU, on 360 test images.",
        f"2 epochs of digits, batch 256, batch repetition b = {runs[0].recipe.repetition}, {minutes:.0f} minutes on",
        "These are the weights of the last epoch.",
        "batch_size: 256",
        "## Intended use and limits",
        "## Licence and data",
    ):
        assert words in card.text


def test_an_existing_path_takes_precedence(root: Path) -> None:
    mixmo.save_pretrained(mixmo.create("wrn10_1", classes=3, members=3), Path(NAME))  # in the working directory
    assert mixmo.load(NAME).members == 3
    assert mixmo.from_pretrained(NAME).members == 3


def test_a_shipped_name_takes_precedence_over_the_hub(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = mixmo.save_pretrained(mixmo.create("wrn10_1", classes=3, members=3), tmp_path / "on the hub")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(other))
    assert mixmo.load(NAME).members == 2
    assert mixmo.load(f"{NAME}-other").members == 3  # much like a shipped name, but the Hub has it


@pytest.mark.parametrize("name", ["digits/cut-mixmo-wrn10-2", "digits/cutmixmo-wrn10-1", "cut-mixmo-wrn10-1"])
def test_a_misspelt_name_raises_with_a_suggestion(root: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"did you mean '{NAME}'"):
        mixmo.load(name)


def test_an_unlike_name_raises_without_a_suggestion(root: Path) -> None:
    with pytest.raises(UserError, match="check the name"):
        mixmo.load("me/pets")
    with pytest.raises(UserError, match="OWNER/NAME"):
        mixmo.load("/a/b/c")


def test_an_empty_package_ships_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOT", tmp_path / "nowhere")
    assert mixmo.shipped() == []


def test_mixmo_predict_takes_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(module, "ROOT", tmp_path / "root")
    net = mixmo.create("wrn10_1", classes=3)
    mixmo.save_pretrained(net, tmp_path / "root" / "pets" / "small", about=ABOUT, half=True)
    pixels = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3)).astype(np.uint8)
    Image.fromarray(pixels[0]).save(tmp_path / "one.png")
    assert main(["predict", "pets/small", str(tmp_path / "one.png"), "--format", "json", "--device", "cpu"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    expected = mixmo.predict(mixmo.load("pets/small"), pixels)
    assert row["label"] == ABOUT.classes[expected.labels.item()]
    assert row["probability"] == pytest.approx(expected.confidence.item(), rel=1e-5)


def test_commands_work_with_a_temperature_alone(
    made: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    (sample, *_), net = sorted((made.parent / "samples").iterdir()), mixmo.load(NAME)
    mixmo.save_pretrained(net, tmp_path / "root" / NAME, calibration=Calibration(temperature=1.3))
    monkeypatch.setattr(module, "ROOT", tmp_path / "root")
    net = mixmo.load(NAME)
    assert main(["predict", NAME, str(sample), "--format", "json", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)
    pixels = torch.from_numpy(np.asarray(Image.open(sample)).copy())[None, ..., None]
    assert row["label"] == sample.stem
    assert row["calibrated_probability"] == pytest.approx(mixmo.predict(net, pixels).calibrated.max().item(), rel=1e-5)
    assert (row["set"], row["abstain"]) == (None, None)
    assert f"{NAME} has a temperature but no prediction sets" in err
    assert main(["export", NAME, "--to", str(tmp_path / "model.onnx")]) == 0
    assert "as saved, not fitted on held-out images (see its model card)" in capsys.readouterr().err
    assert main(["list", "shipped"]) == 0
    assert f"{NAME}  wrn10_1 with 2 members. On digits: Top1 " in capsys.readouterr().out


def test_half_saves_half_the_size(tmp_path: Path) -> None:
    net, images = mixmo.create("wrn10_1", classes=3).eval(), torch.randn(2, 3, 32, 32)
    whole, half = (mixmo.save_pretrained(net, tmp_path / str(i), half=i == 1) for i in range(2))
    assert (half / "model.safetensors").stat().st_size < 0.6 * (whole / "model.safetensors").stat().st_size
    torch.testing.assert_close(mixmo.load(half)(images), net(images), atol=0.02, rtol=0.02)
    assert not torch.equal(mixmo.load(half)(images), net(images))
    assert torch.equal(mixmo.load(whole)(images), net(images))  # the network is left unchanged


def test_ship_rejects_existing_folders_and_missing_data(
    made: Path, runs: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        ([NAME, "--out", str(made)], "exists already; remove it first"),
        (["digits/other", "--out", str(made), "--samples", "1"], "--samples needs --data"),
    ):
        with pytest.raises(SystemExit):
            ship(runs[0].path, *arguments)
        assert message in capsys.readouterr().err


def test_samples_are_classified_images_of_different_classes(made: Path, root: Path, digits: Dataset) -> None:
    paths = sorted((made.parent / "samples").iterdir())
    assert len(paths) == 3
    for path in paths:
        pixels = torch.from_numpy(np.asarray(Image.open(path)).copy())
        assert mixmo.predict(mixmo.load(NAME), pixels[None, ..., None]).labels.item() == int(path.stem)
        same = (digits.test.images[..., 0] == pixels).flatten(1).all(1)
        assert digits.test.labels[same].tolist() == [int(path.stem)]


def test_the_cifar100_network_is_shipped() -> None:
    assert "cifar100/cut-mixmo-wrn28-4" in mixmo.shipped()


@pytest.mark.parametrize("name", mixmo.shipped())
def test_shipped_folders_are_complete(name: str) -> None:
    folder, net = module.shipped_folder(name), mixmo.load(name)
    assert {path.name for path in folder.iterdir()} == {"README.md", checksums.NAME, "config.json", "model.safetensors"}
    assert checksums.read_sums(folder).keys() == {"config.json", "model.safetensors"}
    stored = load_file(folder / "model.safetensors")
    assert (folder / "model.safetensors").stat().st_size < 16e6
    assert {tensor.dtype for tensor in stored.values() if tensor.dim() > 1} == {torch.bfloat16}
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}
    assert len(set(net.about.classes)) == 100
    fitted = net.about.calibration
    assert (fitted.samples, fitted.conformal.level, fitted.selective.risk) == (10_000, 0.9, 0.05)
    assert fitted.selective.coverage > 0.5
    card = ModelCard.load(folder / "README.md")
    assert card.data.license == "mit"
    for section in ("Images", "Scores", "Training", "Calibration", "Intended use and limits", "Licence and data"):
        assert f"## {section}" in card.text
    assert f"| {net.about.scores['top1']:.4f} |" in card.text


@pytest.mark.parametrize("name", mixmo.shipped())
def test_sample_images_are_classified(name: str) -> None:
    net = mixmo.load(name)
    assert len(SAMPLES) >= 3
    pixels = torch.stack([torch.from_numpy(np.asarray(Image.open(path).convert("RGB")).copy()) for path in SAMPLES])
    found = [net.about.classes[k] for k in mixmo.predict(net, pixels).labels.tolist()]
    assert found == [path.stem for path in SAMPLES]


@pytest.mark.slow
@pytest.mark.parametrize("name", mixmo.shipped())
def test_the_stated_top1_is_reached(name: str, cifar100_root: Path) -> None:
    """On the first images of the test set: all of them take over four minutes."""
    net = mixmo.load(name)
    stated = json.loads((module.shipped_folder(name) / "config.json").read_text())["origin"]["first"]
    assert stated["images"] == 1_000
    test = data.load(net.about.dataset, cifar100_root, train=False).test
    right = mixmo.predict(net, test.images[:1_000]).labels == test.labels[:1_000]
    assert right.double().mean().item() == pytest.approx(stated["top1"], abs=0.002)  # processors round differently
