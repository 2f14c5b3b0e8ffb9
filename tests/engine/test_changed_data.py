"""A folder of images that changes after a training began: resuming and evaluating say so."""

import shutil
import warnings
from pathlib import Path

import pytest
import torch

from helpers import noise
from mixmo import UserError
from mixmo.engine import Runtime, train
from mixmo.evaluation.multiplex import score_multiplexed
from mixmo.evaluation.run_scores import score_runs
from mixmo.recipes import Recipe
from mixmo.runs.directory import Run

RUNTIME = Runtime(device="cpu", quiet=True)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A training of 12 of its 24 steps, on 24 images and 6 test images."""
    pets = noise(tmp_path / "pets", {"images": 15}, "ab", (12, 12, 3)) / "images"
    recipe = Recipe(dataset=f"folder:{pets}@12", val=0.2, depth=10, width=1, batch_size=4, repetition=1, epochs=4)
    return train(recipe, tmp_path / "run", RUNTIME, until=12)


def images(run: Run) -> Path:
    return Path(run.recipe.dataset.removeprefix("folder:").removesuffix("@12"))


def test_unchanged_images_are_resumed_and_evaluated_without_a_warning(run: Run) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        score_runs([run], source="weights", epochs=["last"])
        train(run.recipe, run.path, RUNTIME, resume=True)
    said = [str(warning.message) for warning in caught]
    assert not [text for text in said if "differ from those" in text or "test images when" in text]


def test_replaced_images_are_resumed_with_a_warning(run: Run) -> None:
    first, *_, last = sorted((images(run) / "a").iterdir())
    shutil.copy(first, last)
    with pytest.warns(UserWarning, match=r"images of folder:.* differ from those that .*run was trained on"):
        train(run.recipe, run.path, RUNTIME, resume=True)


def test_a_removed_image_stops_the_resuming(run: Run) -> None:
    sorted((images(run) / "a").iterdir())[0].unlink()
    with pytest.raises(UserError, match=r"has changed \(images: 2[34] -> 2[34]|\(images: 6 -> 5"):
        train(run.recipe, run.path, RUNTIME, resume=True)


def test_scores_of_other_test_images_are_said(run: Run) -> None:
    """Ten more images move the border between training and test."""
    for label in "ab":
        for number in range(5):
            shutil.copy(images(run) / label / "00.png", images(run) / label / f"new{number}.png")
    said = r"had 6 test images when .*run was trained, and has 8 now; some of these may have been training images"
    with pytest.warns(UserWarning, match=said):
        score_runs([run], source="weights", epochs=["last"])
    with pytest.warns(UserWarning, match=said):
        score_multiplexed([run.path], "last", torch.device("cpu"))
