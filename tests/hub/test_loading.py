"""mixmo.load: run directories with their metadata and calibration, and names that are not found."""

import math
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

import mixmo
from mixmo.data.types import Dataset
from mixmo.engine import Runtime, train
from mixmo.recipes import named
from mixmo.runs.directory import Run
from mixmo.storage import checksums
from mixmo.utils.errors import UserError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    recipe = named("digits/cut-mixmo").replace(epochs=2, width=1, batch_size=128, validation=300)
    return train(recipe, tmp_path_factory.mktemp("hub") / "run", Runtime(device="cpu", quiet=True))


def test_a_run_is_loaded_with_its_metadata_and_calibration(run: Run, digits: Dataset, tmp_path: Path):
    net = mixmo.load(run.path)
    about = net.about
    assert about.classes == digits.classes
    assert (about.size, about.resize, about.dataset) == ((1, 8, 8), None, "digits")
    assert about.scores["top1"] == run.read_scores()["last"]["ensemble"]["top1"]
    assert about.calibration.samples == 300
    prediction = mixmo.predict(net, digits.test.images)
    torch.testing.assert_close(prediction.logits, run.read_logits()[0], atol=1e-4, rtol=1e-4)
    covered = prediction.sets[torch.arange(360), digits.test.labels].double().mean().item()
    assert covered == pytest.approx(0.9, abs=0.06)
    folder = mixmo.save_pretrained(net, tmp_path / "model")
    again = mixmo.predict(mixmo.load(folder), digits.test.images)
    torch.testing.assert_close(again.probs, prediction.probs, atol=1e-6, rtol=1e-5)
    assert torch.equal(again.sets, prediction.sets)
    assert torch.equal(again.abstain, prediction.abstain)


def test_a_run_in_shards_of_half_precision_is_loaded(digits: Dataset, tmp_path: Path):
    recipe = named("digits/cut-mixmo").replace(epochs=1, width=1, batch_size=256)
    run = train(recipe, tmp_path / "run", Runtime(device="cpu", quiet=True, compact=True, shard_mb=0.1))
    assert len(list(run.path.glob("last-*.safetensors"))) > 1
    net = mixmo.load(run.path)
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    logits = mixmo.predict(net, digits.test.images).logits
    torch.testing.assert_close(logits, run.read_logits()[0], atol=1e-4, rtol=1e-4)
    again = mixmo.load(mixmo.save_pretrained(net, tmp_path / "saved"))
    torch.testing.assert_close(mixmo.predict(again, digits.test.images).logits, logits, atol=1e-5, rtol=1e-5)


def test_weights_of_another_run_raise(run: Run, runs: list[Run], tmp_path: Path):
    for name in ("recipe.yaml", "dataset.json", "scores.json"):
        (tmp_path / name).write_bytes((run.path / name).read_bytes())
    (tmp_path / "last.safetensors").write_bytes((runs[1].path / "last.safetensors").read_bytes())
    with pytest.raises(UserError, match="architecture"):
        mixmo.load(tmp_path)


def test_a_run_without_validation_images_is_not_calibrated(runs: list[Run]):
    assert mixmo.load(runs[0].path).about.calibration is None
    assert mixmo.load(runs[1].path, "best").members == 1


def test_too_few_held_out_images_are_said(digits: Dataset, tmp_path: Path) -> None:
    recipe = named("digits/vanilla").replace(width=1, epochs=1, batch_size=256, validation=5)
    run = train(recipe, tmp_path / "run", Runtime(device="cpu", quiet=True))
    with pytest.warns(UserWarning, match="held out 5 images, and calibration needs 9: .* not calibrated; train with"):
        assert mixmo.load(run.path).about.calibration is None


def test_a_missing_calibration_warns_and_a_damaged_one_raises(run: Run, tmp_path: Path):
    copy = Run.open(shutil.copytree(run.path, tmp_path / "run"))
    path = copy.path / "logits-last.safetensors"
    whole = load_file(path)
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(UserError, match="logits-last"):
        mixmo.load(copy.path)
    (copy.path / checksums.NAME).unlink()
    save_file(whole | {"validation_logits": whole["validation_logits"] * math.nan}, path)
    with pytest.raises(UserError, match="NaN"):
        mixmo.load(copy.path)
    path.unlink()
    with pytest.warns(UserWarning, match="not calibrated"):
        assert mixmo.load(copy.path).about.calibration is None


def test_a_name_that_is_not_found_raises(monkeypatch: pytest.MonkeyPatch):
    def download(name: str, **given: Any) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UserError, match="no route to host"):
        mixmo.load("me/nothing")
    with pytest.raises(UserError, match="/a/b/c"):
        mixmo.load("/a/b/c")


def test_the_best_epoch_of_a_saved_network_raises():
    with pytest.raises(UserError, match="best"):
        mixmo.load("cifar100/cut-mixmo-wrn28-4", which="best")
