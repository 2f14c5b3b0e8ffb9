"""Scores on corrupted test sets, compared with a plain loop over the same files."""

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mixmo
from mixmo.data import DATASETS, corrupted
from mixmo.data.corrupted import COMMON, EXTRA
from mixmo.data.types import Dataset, Split
from mixmo.engine import Runtime, train
from mixmo.engine.trainer import Trainer
from mixmo.evaluation.robustness import score_corruptions
from mixmo.metrics.scores import nll, top1, top5
from mixmo.models.metadata import About
from mixmo.recipes import named
from mixmo.runs.checkpoint import Checkpoints
from mixmo.runs.directory import Run
from mixmo.runs.network import Unfinished, load_network
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work, shown

CPU = torch.device("cpu")
CLASSES = 7
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def split(samples: int, size: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (samples, size, size, 3), generator=generator).byte()
    return Split(images, torch.arange(samples) % CLASSES)


def dataset(size: int) -> Dataset:
    names = tuple(f"class {n}" for n in range(CLASSES))
    return Dataset("cifar10", split(32, size, 1), split(14, size, 2), names, MEAN, STD)


def make_run(path: Path, seed: int, size: int = 32, until: int | None = None) -> Run:
    """A network of two members that has seen a few random images once."""
    recipe = named("digits/cut-mixmo").replace(
        dataset="cifar10", depth=10, width=1, epochs=1, batch_size=16, repetition=1, seed=seed
    )
    run = Run.create(path, recipe)
    Trainer(recipe, dataset(size), run, Runtime(device="cpu", quiet=True), CPU).run(until)
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    root = tmp_path_factory.mktemp("runs")
    return [make_run(root / str(seed), seed) for seed in (0, 1)]


def paths(runs: list[Run]) -> list[Path]:
    return [run.path for run in runs]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The 14 test images under 19 "corruptions", which are other random images, at five severities."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(np.arange(14) % CLASSES, 5).astype(np.uint8))
    for number, name in enumerate(COMMON + EXTRA):
        np.save(folder / f"{name}.npy", split(70, 32, 100 + number).images.numpy())
    return folder


@pytest.fixture
def few(folder: Path) -> Path:
    """Only two of the 19."""
    for name in set(COMMON + EXTRA) - {"fog", "snow"}:
        (folder / f"{name}.npy").unlink()
    return folder


def by_hand(runs: list[Run], images: np.ndarray, which: str) -> torch.Tensor:
    """The mean of all heads' logits (N, K), one image at a time."""
    rows = []
    with torch.no_grad():
        for image in images:
            x = torch.tensor((image / 255 - MEAN) / STD).float().permute(2, 0, 1)[None]
            heads = [load_network(run, which).each(x)[:, 0].double() for run in runs]
            rows.append(torch.cat(heads).mean(0))
    return torch.stack(rows)


def test_cells_pool_and_mean_error_agree_with_a_plain_loop(runs: list[Run], folder: Path):
    scores = score_corruptions(paths(runs), folder, "last", CPU)
    assert set(scores.corruptions) == {*COMMON, *EXTRA}
    labels = torch.arange(14) % CLASSES
    for name, severity in (("fog", 1), ("fog", 5), ("saturate", 3)):
        images = np.load(folder / f"{name}.npy")[14 * (severity - 1) : 14 * severity]
        logits = by_hand(runs, images, "last")
        cell = scores.corruptions[name][severity]
        assert cell.top1 == top1(logits, labels).item()
        assert cell.top5 == top5(logits, labels).item()
        assert cell.nll == pytest.approx(nll(logits, labels).item(), rel=1e-4)
    cells = [cell for row in scores.corruptions.values() for cell in row.values()]
    assert len(cells) == 95
    assert scores.pooled == pytest.approx(np.mean(cells, 0))
    errors = [1 - cell.top1 for name in COMMON for cell in scores.corruptions[name].values()]
    assert len(errors) == 75
    assert scores.mce == pytest.approx(np.mean(errors))
    assert scores.mce != pytest.approx(1 - scores.pooled.top1)  # the four extra ones count in the pool only


def test_clean_scores_equal_the_stored_scores_of_the_run(runs: list[Run], few: Path):
    for which in ("last", "best"):
        scores = score_corruptions(paths(runs[:1]), few, which, CPU)
        stored = runs[0].read_scores()[which]["ensemble"]
        assert scores.clean == pytest.approx([stored[key] for key in ("top1", "top5", "nll")])
        assert scores.which == which


def test_clean_and_corrupted_scores_are_of_the_same_weights_if_a_training_ends_meanwhile(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATASETS._things, "cifar10", lambda root: dataset(32))
    run, other = (make_run(tmp_path / name, 0, until=1) for name in ("run", "other"))
    fill = Checkpoints.load_weights

    def fill_and_end(*given: Any, **options: Any) -> int:
        step = fill(*given, **options)
        train(run.recipe, run.path, Runtime(device="cpu", quiet=True), resume=True)
        return step

    with pytest.warns(Unfinished):
        expected = score_corruptions([other.path], few, "last", CPU)
    monkeypatch.setattr(Checkpoints, "load_weights", fill_and_end)
    with pytest.warns(Unfinished):
        found = score_corruptions([run.path], few, "last", CPU)
    assert run.is_finished()
    assert found == expected


def test_uncorrupted_files_give_the_clean_scores(runs: list[Run], tmp_path: Path):
    test = split(14, 32, 2)
    np.save(tmp_path / "labels.npy", np.tile(test.labels.numpy(), 5))
    np.save(tmp_path / "fog.npy", np.tile(test.images.numpy(), (5, 1, 1, 1)))
    scores = score_corruptions(paths(runs), tmp_path, "last", CPU)
    for cell in scores.corruptions["fog"].values():
        assert cell == pytest.approx(scores.clean, rel=1e-5)
    assert scores.mce is None  # one corruption is not the fifteen


def test_progress_counts_every_image(runs: list[Run], few: Path, works: list[Work]):
    with shown():
        score_corruptions(paths(runs), few, "last", CPU)
    assert [work.line() for work in works] == ["scoring images of CIFAR-10-C: 280 of 280, 0:00 left"]  # 2 x 2 x 5 x 14


def test_severities_listed_in_the_folder_are_scored(runs: list[Run], few: Path):
    whole = score_corruptions(paths(runs), few, "last", CPU).corruptions["snow"]
    for path in few.glob("*.npy"):
        np.save(path, np.load(path)[14 * 2 : 14 * 4])
    (few / "severities.txt").write_text("3 4")
    scores = score_corruptions(paths(runs), few, "last", CPU)
    assert scores.corruptions["snow"] == {3: whole[3], 4: whole[4]}
    (few / "fog.npy").unlink()
    for path in few.glob("*.npy"):
        np.save(path, np.load(path)[14:])
    (few / "severities.txt").write_text("4")
    assert score_corruptions(paths(runs), few, "last", CPU).pooled == whole[4]


def test_a_saved_network_scores_as_its_run(runs: list[Run], few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Alone, and in an ensemble with a run; its clean scores come from the test images."""
    monkeypatch.setitem(DATASETS._things, "cifar10", lambda root: dataset(32))
    mixmo.save_pretrained(mixmo.load(runs[0].path), tmp_path / "saved")
    for others in ([], paths(runs[1:])):
        expected = score_corruptions([runs[0].path, *others], few, "last", CPU)
        found = score_corruptions([tmp_path / "saved", *others], few, "last", CPU)
        assert (found.which, found.images) == ("last" if others else None, 14)
        assert found.clean == pytest.approx(expected.clean, rel=1e-4)
        assert found.pooled == pytest.approx(expected.pooled, rel=1e-4)
    np.save(few / "labels.npy", np.tile((np.arange(14) + 1) % CLASSES, 5))
    with pytest.raises(UserError, match="labels"):
        score_corruptions([tmp_path / "saved"], few, "last", CPU)


def test_images_are_resized_for_a_saved_network(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    net = mixmo.create("wrn10_1", classes=CLASSES, members=2).eval()
    about = About((3, 40, 40), MEAN, STD, dataset="cifar10")
    mixmo.save_pretrained(net, tmp_path / "saved", about=about)
    monkeypatch.setitem(DATASETS._things, "cifar10", lambda root: dataset(32))
    found = score_corruptions([tmp_path / "saved"], few, "last", CPU)
    images = torch.from_numpy(np.load(few / "fog.npy")[:14]).permute(0, 3, 1, 2).float()
    large = torch.nn.functional.interpolate(images, (40, 40), mode="bilinear", antialias=True).round() / 255
    normal = (large - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    with torch.no_grad():
        expected = nll(net.each(normal).double().mean(0), torch.arange(14) % CLASSES)
    assert found.corruptions["fog"][1].nll == pytest.approx(expected.item(), rel=1e-4)


def test_labels_of_another_test_set_raise_an_error(runs: list[Run], folder: Path):
    np.save(folder / "labels.npy", np.tile((np.arange(14) + 1) % CLASSES, 5))
    with pytest.raises(UserError, match="labels"):
        score_corruptions(paths(runs), folder, "last", CPU)


def test_one_cell_is_mapped_at_a_time(runs: list[Run], few: Path, monkeypatch: pytest.MonkeyPatch):
    alive: list[weakref.ref[np.ndarray]] = []

    def watched(path: Path) -> np.ndarray:
        assert sum(reference() is not None for reference in alive) <= 1  # the one that this takes the place of
        array = open_(path)
        if path.name != "labels.npy":
            alive.append(weakref.ref(array))
        return array

    open_ = corrupted._open
    monkeypatch.setattr(corrupted, "_open", watched)
    score_corruptions(paths(runs), few, "last", CPU)
    assert len(alive) >= 10


def test_damaged_files_are_found_before_any_prediction(runs: list[Run], folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mixmo.evaluation.robustness.open_models", None)  # would raise if called
    (folder / "zoom_blur.npy").write_bytes(b"")
    with pytest.raises(UserError, match="zoom_blur"):
        score_corruptions(paths(runs), folder, "last", CPU)
