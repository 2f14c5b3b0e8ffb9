"""The answers of a model whose classes, sizes and batches are not those of the images."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import mixmo
from mixmo.data.decode import SkippedImages
from mixmo.data.types import Dataset
from mixmo.evaluation import saved_models as models
from mixmo.evaluation.saved_models import Model, dataset_answers, file_answers, open_model
from mixmo.inference.predict import default_batch
from mixmo.runs.directory import Run

CPU = torch.device("cpu")


@pytest.fixture
def model(runs: list[Run]) -> Model:
    return open_model(runs[0].path, "last", CPU)


def test_labels_are_numbers_of_the_model_s_own_classes(model: Model, digits: Dataset) -> None:
    """A data set that has them in another order, or lacks some, is scored all the same."""
    turned = model._replace(about=replace(model.about, classes=model.about.classes[::-1]))
    plain, found = dataset_answers(model, "digits", None), dataset_answers(turned, "digits", None)
    assert torch.equal(plain.labels, digits.test.labels)
    assert torch.equal(found.labels, 9 - digits.test.labels)
    assert torch.equal(found.logits, plain.logits)


def test_files_of_more_than_one_batch(
    model: Model, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their order, without those that cannot be read, even where these are a whole batch."""
    lines = ["path,label"]
    for number in range(9):
        path = tmp_path / f"{number}.png"
        if number in (0, 1, 2, 4):
            path.write_bytes(b"not an image")
        else:
            Image.fromarray(digits.test.images[number, ..., 0].numpy()).save(path)
        lines.append(f"{path.name},{digits.test.labels[number]}")
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(models, "default_batch", lambda *_: 3)
    found = file_answers(model, tmp_path / "list.csv", "scoring")
    read = [3, 5, 6, 7, 8]
    assert found.labels.tolist() == digits.test.labels[read].tolist()
    torch.testing.assert_close(found.logits, mixmo.predict(model.nets, digits.test.images[read]).logits)
    skipped = [line.split(":")[0] for line in capsys.readouterr().err.splitlines() if line.startswith("skipped")]
    assert [Path(line).name for line in skipped] == ["0.png", "1.png", "2.png", "4.png"]


def test_a_data_set_of_which_a_whole_batch_cannot_be_read(
    model: Model, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory or streamed."""
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
            found = dataset_answers(model, f"folder:{tmp_path}@8", None)
        assert found.labels.tolist() == read
        torch.testing.assert_close(found.logits, mixmo.predict(model.nets, digits.test.images[read]).logits)


def test_batches_are_as_large_as_images_allow(model: Model) -> None:
    large = model._replace(about=replace(model.about, size=(1, 256, 128)))
    assert (model.batch, large.batch) == (100, default_batch(CPU, 256 * 128))
    assert large.batch == 12
