"""Soft targets from trained networks."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import mixmo
from mixmo import data
from mixmo.engine import Runtime, train
from mixmo.engine.teacher import Teacher, load_teacher, taught
from mixmo.mixing.types import Mix
from mixmo.models.metadata import About
from mixmo.recipes import named

TINY = named("digits/vanilla").replace(width=1, epochs=1)
RUNTIME = Runtime(device="cpu", quiet=True, compile=False)


@pytest.mark.parametrize("networks", [1, 2])
def test_teachers_soften_the_targets(networks: int) -> None:
    teachers = [nn.Sequential(nn.Flatten(), nn.Linear(12, 3)) for _ in range(networks)]
    images = torch.randn(2, 5, 3, 2, 2)
    mix = Mix(images, torch.ones(2, 5, 1, 1, 1) / 2, torch.randint(3, (2, 5)), torch.ones(2, 5))
    targets = taught(mix, Teacher(teachers), 0.25)
    own = torch.nn.functional.one_hot(mix.targets, 3).float()
    expected = 0.75 * own + 0.25 * torch.stack(
        [sum(teacher(x) for teacher in teachers) / networks for x in images]
    ).softmax(-1)
    torch.testing.assert_close(targets, expected)


def test_all_networks_of_a_run_teach(tmp_path: Path) -> None:
    """Their predictions are those of `mixmo.load`; the student learns other weights than without them."""
    train(TINY.replace(networks=2), tmp_path / "pair", RUNTIME)
    recipe = TINY.replace(teacher=str(tmp_path / "pair"), seed=7)
    dataset = data.load("digits")
    teacher, x = load_teacher(recipe, dataset), torch.randn(2, *dataset.size)
    assert teacher is not None
    alone = [mixmo.load(tmp_path / "pair" / name)(x) for name in "01"]
    torch.testing.assert_close(teacher(x), (alone[0] + alone[1]) / 2)
    weights = []
    for name, one in (("taught", recipe), ("alone", recipe.replace(teacher=None))):
        train(one, tmp_path / name, RUNTIME)
        weights.append(mixmo.load(tmp_path / name).heads[0].weight)
    assert not torch.equal(*weights)


def test_a_teacher_of_other_classes_is_an_error(tmp_path: Path) -> None:
    net, dataset = mixmo.create("wrn10_1", classes=3, members=1, channels=1), data.load("digits")
    net.about = About(dataset.size, dataset.mean, dataset.std, ("one", "two", "three"))
    mixmo.save_pretrained(net, tmp_path / "other")
    with pytest.raises(mixmo.UserError, match="has other classes, normalisation or image size than this training"):
        load_teacher(TINY.replace(teacher=str(tmp_path / "other")), dataset)


def test_a_missing_network_of_a_run_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pair/1` is also a possible name on the Hub, of a stranger."""
    train(TINY.replace(networks=2), tmp_path / "pair", RUNTIME)
    shutil.rmtree(tmp_path / "pair" / "1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mixmo.UserError, match="pair/1 is not a run directory: that network has not begun to train"):
        load_teacher(TINY.replace(teacher="pair"), data.load("digits"))


def test_a_teacher_in_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(TINY.replace(networks=2), tmp_path / "pair", RUNTIME)
    monkeypatch.setenv("HOME", str(tmp_path))
    teacher = load_teacher(TINY.replace(teacher="~/pair"), data.load("digits"))
    assert teacher is not None
    assert len(teacher.networks) == 2


def test_a_training_is_not_resumed_with_another_teacher(tmp_path: Path) -> None:
    teacher, out = tmp_path / "teacher", tmp_path / "run"
    train(TINY, teacher, RUNTIME)
    recipe = TINY.replace(teacher=str(teacher), seed=7)
    train(recipe, out, RUNTIME, until=3)
    teacher.rename(tmp_path / "moved")
    with pytest.raises(mixmo.UserError, match="teacher does not exist"):
        train(recipe, out, RUNTIME, resume=True)
    train(TINY.replace(seed=1), teacher, RUNTIME)
    with pytest.raises(mixmo.UserError, match=r"has changed since the training in .*run began; restore it"):
        train(recipe, out, RUNTIME, resume=True)
    shutil.rmtree(teacher)
    (tmp_path / "moved").rename(teacher)
    assert train(recipe, out, RUNTIME, resume=True).is_finished()
