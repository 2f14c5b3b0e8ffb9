"""Training on image files that are read meanwhile: the same, to the last bit, as on those in memory."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import assert_same
from mixmo import UserError, data
from mixmo.data import stream
from mixmo.data.decode import SkippedImages
from mixmo.engine import Runtime, train
from mixmo.engine.batch import Batches, Now
from mixmo.engine.source import each_step, plan
from mixmo.evaluation.multiplex import score_multiplexed
from mixmo.evaluation.run_scores import score_runs
from mixmo.recipes import Recipe
from mixmo.runs.directory import Run
from mixmo.storage import checksums
from mixmo.utils.rng import Stream

SIZE = 20
RECIPE = Recipe(depth=10, width=1, batch_size=12, repetition=2, epochs=2, crop=1, lr=0.1, schedule="cosine")
RUNTIME = Runtime(device="cpu", quiet=True, save_seconds=1.0, stream=True, workers=2)
RESIDENT = replace(RUNTIME, stream=False)
VARIANTS = {
    "plain": {},
    "cutmix": {"pixel": "cutmix"},
    "mixup of one": {"members": 1, "mask": "sum", "p": 0.0, "pixel": "mixup", "pixel_p": 1.0, "repetition": 1},
    "cutout": {"pixel": "cutout"},
    "augmix": {"augmix": True},
    "imagenet": {"size": 16, "crop_scale": 0.08, "pixel": "resizemix"},
    "window": {"size": 16, "crop": 0},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of 15 train images and 4 test images; each class has its hue."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for part, count in (("train", 15), ("val", 4)):
        for label in range(3):
            (root / part / f"class{label}").mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 128, (24, 22 + i, 3), dtype=np.uint8)
                pixels[..., label] += 127
                Image.fromarray(pixels).save(root / part / f"class{label}" / f"{i:02}.png")
    return root


def recipe(root: Path, **changes: object) -> Recipe:
    return RECIPE.replace(dataset=f"folder:{root}@{SIZE}", **changes)


GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("variant", VARIANTS)
def test_same_batches_as_in_memory(root: Path, variant: str, device: str) -> None:
    chosen, on = recipe(root, **VARIANTS[variant]), torch.device(device)
    mixes = []
    for streamed in (False, True):
        dataset = data.load(chosen.dataset, device=on, stream=streamed, workers=0 if device == "cpu" else 2)
        batches = Batches(chosen, dataset, dataset.train)
        planned, at = plan(chosen, len(dataset.train.labels), epoch=1), Stream(0, on).at
        steps = each_step(chosen, dataset.train, planned, 1, 3)
        mixes.append(
            [
                batches.mix(batches.draw(s.unique, at("step", i), s.partners, s.pool), Now.at(1.0, device=on))
                for i, s in enumerate(steps)
            ]
        )
    assert len(mixes[0]) == len(mixes[1]) == 2
    for resident, read in zip(*mixes, strict=True):
        for name, left, right in zip(resident._fields, resident, read, strict=True):
            assert (left is None and right is None) or torch.equal(left, right), name


def test_an_epoch_reads_every_image_once(root: Path) -> None:
    planned = plan(recipe(root), 45, epoch=0)
    assert planned.unique.shape == (7, 6)
    assert len(planned.unique.unique()) == 42
    again, other = plan(recipe(root), 45, epoch=0), plan(recipe(root), 45, epoch=1)
    assert torch.equal(planned.unique, again.unique)
    assert not torch.equal(planned.unique, other.unique)


def test_partners_come_from_the_whole_set() -> None:
    partners = plan(RECIPE.replace(pixel="cutmix"), 600, epoch=0).partners
    assert partners is not None
    assert partners.number.shape == partners.whether.shape == (100, 2, 12)
    assert len(partners.number.unique()) > 0.9 * 600
    assert not torch.equal(partners.number[0], partners.number[1])
    assert plan(RECIPE.replace(pixel="cutout"), 600, epoch=0).partners is None


FULL = {"pixel": "cutmix", "validation": 6, "size": 16, "crop_scale": 0.3}


@pytest.fixture(scope="module")
def finished(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trained on files, without a stop."""
    return train(recipe(root, **FULL), tmp_path_factory.mktemp("runs") / "whole", RUNTIME)


def test_same_run_as_in_memory(root: Path, finished: Run, tmp_path: Path) -> None:
    assert_same(train(recipe(root, **FULL), tmp_path / "run", RESIDENT), finished)


@pytest.mark.parametrize("stop", [2, 6, 9])
def test_resume_equals_uninterrupted(root: Path, finished: Run, tmp_path: Path, stop: int) -> None:
    """In the first epoch, at its end, in the second; goes on with another number of workers."""
    train(recipe(root, **FULL), tmp_path / "run", RUNTIME, until=stop)
    runtime = replace(RUNTIME, workers=1)
    assert_same(train(recipe(root, **FULL), tmp_path / "run", runtime, resume=True), finished)


def test_scores_from_weights(finished: Run) -> None:
    """The network sees the middle of test images, and dataset.json says how large that is."""
    assert score_runs([finished], "logits") == score_runs([finished], "weights")
    assert finished.read_dataset()["size"] == [3, 16, 16]


def test_an_unreadable_test_image_is_skipped(root: Path, tmp_path: Path) -> None:
    """It is not scored, in memory or not; and later nothing but the test images is decoded."""
    copy = shutil.copytree(root, tmp_path / "images", ignore=shutil.ignore_patterns(".*"))
    (copy / "val" / "class1" / "02.png").write_bytes(b"not an image")
    chosen = recipe(copy, validation=6, epochs=1)
    with pytest.warns(SkippedImages, match="1 of the 12 images of test-20"):
        streamed = train(chosen, tmp_path / "streamed", RUNTIME)
    with pytest.warns(SkippedImages, match="1 of the 12 images of test-20"):
        assert_same(train(chosen, tmp_path / "resident", RESIDENT), streamed)
    assert streamed.read_logits()[1].tolist() == [0] * 4 + [1] * 3 + [2] * 4
    shutil.rmtree(copy / ".mixmo-cache")
    with pytest.warns(SkippedImages, match="1 of the 12 images of test-20"):
        again = score_runs([streamed], "weights", epochs=["last"]).to_dict()
    assert again["last"] == streamed.read_scores()["last"]
    assert [path.name.rpartition("-")[0] for path in (copy / ".mixmo-cache").iterdir()] == ["test-20"]


@pytest.mark.parametrize("name", ["aardvark", "class9"])
def test_a_class_that_was_renamed_since(root: Path, finished: Run, tmp_path: Path, name: str) -> None:
    """Its number may be another's now: the labels would not be those that the network learnt."""
    copy = shutil.copytree(finished.path, tmp_path / "run")
    images = shutil.copytree(root, tmp_path / "images", ignore=shutil.ignore_patterns(".*"))
    (copy / checksums.NAME).unlink()
    for file in ("recipe.yaml", "dataset.json"):
        text = (copy / file).read_text()
        (copy / file).write_text(text.replace(f"folder:{root}@", f"folder:{images}@"))
    assert score_runs([Run.open(copy)], "weights", epochs=["last"]).to_dict()["last"] == finished.read_scores()["last"]
    for part in ("train", "val"):
        (images / part / "class1").rename(images / part / name)
    with pytest.raises(UserError, match="have changed since"):
        score_runs([Run.open(copy)], "weights", epochs=["last"])
    with pytest.raises(UserError, match="have changed since"):
        score_multiplexed([copy], "last", torch.device("cpu"))


def test_ctrl_c_reaches_the_workers_too(root: Path, tmp_path: Path) -> None:
    """The terminal sends it to the whole group: the step ends, the run is saved, no worker complains."""
    out = tmp_path / "run"
    fields = {**FULL, "dataset": f"folder:{root}@{SIZE}", "epochs": 500, "width": 1, "depth": 10, "batch_size": 12}
    (tmp_path / "fields.yaml").write_text(json.dumps(fields))
    command = [sys.executable, "-m", "mixmo", "train", "digits/cut-mixmo", "--config", str(tmp_path / "fields.yaml")]
    command += ["--device", "cpu", "--stream", "true", "--workers", "2", "--out", str(out)]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert Run.open(out).path.joinpath("checkpoints").exists()


def test_a_lost_disk_keeps_what_was_learnt(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = stream.decode

    def fails_later(path: str, size: int) -> np.ndarray:
        calls.append(path)
        if len(calls) > 20:
            raise OSError("gone")
        return original(path, size)

    monkeypatch.setattr(stream, "decode", fails_later)
    with pytest.raises(UserError, match="check the disk"):
        train(recipe(root), tmp_path / "run", replace(RUNTIME, workers=0))
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*")] == ["00000003"]


def test_negative_workers_raise_an_error() -> None:
    with pytest.raises(UserError, match="workers = -1"):
        Runtime(workers=-1)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_batch_is_one_program(root: Path, streamed: bool) -> None:
    """Made as a whole from draws and pool, without a look at the host: it can be compiled and recorded."""
    chosen = recipe(root, pixel="cutmix", size=16, crop_scale=0.08)
    dataset = data.load(chosen.dataset, stream=streamed, workers=0)
    batches = Batches(chosen, dataset, dataset.train)
    samples = next(each_step(chosen, dataset.train, plan(chosen, 45, 0), 0, 1))
    draws = batches.draw(samples.unique, torch.Generator().manual_seed(0), samples.partners, samples.pool)
    compiled = torch.compile(batches.mix, fullgraph=True, backend="eager", dynamic=False)
    for left, right in zip(compiled(draws, Now.at(1.0)), batches.mix(draws, Now.at(1.0)), strict=True):
        assert left is right is None or torch.equal(left, right)
