"""Open, predict, stack: logits of models whose classes, sizes and batches differ from those of the images."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import mixmo
from mixmo import UserError
from mixmo.data.decode import SkippedImages
from mixmo.data.types import Dataset
from mixmo.evaluation import models
from mixmo.evaluation.images import FileImages, dataset_images
from mixmo.evaluation.models import Model, open_models
from mixmo.evaluation.pipeline import predict_images, stack
from mixmo.inference.predict import default_batch
from mixmo.metrics.logits import LabelledLogits
from mixmo.runs.directory import Run
from mixmo.utils.progress import Work

CPU = torch.device("cpu")


@pytest.fixture
def model(runs: list[Run]) -> Model:
    return open_models([runs[0].path], "last", CPU)[0]


@pytest.fixture
def files(digits: Dataset, tmp_path: Path) -> Path:
    """A CSV of nine digits, of which numbers 0, 1, 2 and 4 cannot be read."""
    lines = ["path,label"]
    for number in range(9):
        path = tmp_path / f"{number}.png"
        if number in (0, 1, 2, 4):
            path.write_bytes(b"not an image")
        else:
            Image.fromarray(digits.test.images[number, ..., 0].numpy()).save(path)
        lines.append(f"{path.name},{digits.test.labels[number]}")
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "list.csv"


def test_predicted_logits_of_a_run_equal_its_stored_ones(model: Model, runs: list[Run]) -> None:
    found, stored = predict_images([model], dataset_images(model, None, None)), runs[0].read_logits()
    assert torch.equal(found.logits, stored.logits)
    assert torch.equal(found.labels, stored.labels)


def test_labels_index_the_classes_of_the_model(model: Model, digits: Dataset) -> None:
    """Also where the data set has them in another order."""
    turned = model._replace(about=replace(model.about, classes=model.about.classes[::-1]))
    plain, found = (predict_images([each], dataset_images(each, "digits", None)) for each in (model, turned))
    assert torch.equal(plain.labels, digits.test.labels)
    assert torch.equal(found.labels, 9 - digits.test.labels)
    assert torch.equal(found.logits, plain.logits)


def test_unreadable_files_are_left_out_and_named_once(
    model: Model, files: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even where they are a whole batch; and if several models predict them."""
    monkeypatch.setattr(models, "default_batch", lambda *_: 3)
    found = predict_images([model, model], FileImages(files))
    read = [3, 5, 6, 7, 8]
    assert found.labels.tolist() == digits.test.labels[read].tolist()
    expected = mixmo.predict(model.net, digits.test.images[read]).logits
    torch.testing.assert_close(found.logits, torch.cat([expected, expected]))
    skipped = [line.split(":")[0] for line in capsys.readouterr().err.splitlines() if line.startswith("skipped")]
    assert [Path(line).name for line in skipped] == ["0.png", "1.png", "2.png", "4.png"]


def test_files_of_which_none_can_be_read_raise_an_error(model: Model, files: Path) -> None:
    files.write_text("path,label\n0.png,0\n1.png,1\n")
    with pytest.raises(UserError, match="none of the 2 images"):
        predict_images([model], FileImages(files))


def test_files_in_memory_are_held_once(model: Model, files: Path, digits: Dataset) -> None:
    """A shuffled copy shares the memory, and gives its batches in the drawn order."""
    images = FileImages(files).in_memory(model)
    shuffled = images.shuffled()
    assert shuffled.split.resident.data_ptr() == images.split.resident.data_ptr()
    order = torch.tensor([3, 5, 6, 7, 8])[torch.randperm(5, generator=torch.Generator().manual_seed(0))]
    parts = list(shuffled.batches(model, 2, Work("")))
    assert torch.equal(torch.cat([part.resident for part in parts]), digits.test.images[order])
    assert torch.equal(torch.cat([part.labels for part in parts]), digits.test.labels[order])


def test_unreadable_images_of_a_data_set_are_left_out(
    model: Model, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory or streamed, even where they are a whole batch."""
    read = list(range(1, 10))
    for number, label in enumerate(digits.classes):
        for part in ("train", "test"):
            (tmp_path / part / label).mkdir(parents=True)
            Image.fromarray(digits.test.images[number, ..., 0].numpy()).save(tmp_path / part / label / "1.png")
    (tmp_path / "test" / "0" / "1.png").write_bytes(b"not an image")
    monkeypatch.setattr(models, "default_batch", lambda *_: 1)
    for room in (10**9, 0):
        monkeypatch.setattr(mixmo.data, "room", lambda device, room=room: room)
        with pytest.warns(SkippedImages, match="1 of the 10 images"):
            found = predict_images([model], dataset_images(model, f"folder:{tmp_path}@8", None))
        assert found.labels.tolist() == read
        torch.testing.assert_close(found.logits, mixmo.predict(model.net, digits.test.images[read]).logits)


def test_only_the_test_images_of_a_data_set_are_read(model: Model, tmp_path: Path) -> None:
    """The train images of a large folder take hours."""
    for label in model.about.classes or ():
        for part in ("train", "test"):
            (tmp_path / part / label).mkdir(parents=True)
            Image.new("L", (8, 8)).save(tmp_path / part / label / "1.png")
    assert len(dataset_images(model, f"folder:{tmp_path}@8", None)) == 10
    assert [path.name.rpartition("-")[0] for path in (tmp_path / ".mixmo-cache").iterdir()] == ["test-8"]


def test_a_run_of_several_networks_opens_as_several_models(runs: list[Run], tmp_path: Path) -> None:
    Run.create(tmp_path / "two", runs[0].recipe.replace(networks=2))
    for name in ("0", "1"):
        shutil.copytree(runs[0].path, tmp_path / "two" / name)
    opened = open_models([tmp_path / "two", runs[1].path], "last", CPU)
    assert [model.path for model in opened] == [tmp_path / "two" / "0", tmp_path / "two" / "1", runs[1].path]
    assert all(model.stored for model in opened)


def test_logits_of_different_test_sets_are_not_stacked(runs: list[Run]) -> None:
    logits, labels, paths = torch.zeros(2, 4, 3), torch.tensor([0, 1, 2, 0]), [run.path for run in runs]
    assert stack([LabelledLogits(logits, labels)] * 2, paths).logits.shape == (4, 4, 3)
    for other in ((logits, labels.flip(0).roll(1)), (torch.zeros(2, 4, 5), labels), (logits[:, :3], labels[:3])):
        with pytest.raises(UserError, match="other data"):
            stack([LabelledLogits(logits, labels), LabelledLogits(*other)], paths)


def test_batches_of_large_images_are_smaller(model: Model) -> None:
    large = model._replace(about=replace(model.about, size=(1, 256, 128)))
    assert (model.batch, large.batch) == (100, default_batch(CPU, 256 * 128))
    assert large.batch == 12
