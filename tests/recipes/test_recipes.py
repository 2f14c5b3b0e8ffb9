"""Named recipes: the schema refuses what cannot work, and every recipe trains."""

import dataclasses
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from mixmo import UserError, data
from mixmo.engine import Runtime, train
from mixmo.engine.trainer import Trainer
from mixmo.evaluation.run_scores import score_runs
from mixmo.recipes import METHODS, PROTOCOLS, Recipe, named, names
from mixmo.recipes.fast import METHODS_FAST
from mixmo.runs.directory import Run

RUNTIME = Runtime(device="cpu", quiet=True)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method: str) -> None:
    """Contract: three steps on one batch of digits, finite and falling loss."""
    recipe = named(f"digits/{method}").replace(width=1, networks=1, batch_size=80, warmup=0.0, epochs=100)
    recipe = recipe.replace(
        repetition=min(recipe.repetition, 4), p=recipe.p and 1.0, pixel_p=1.0, momentum=0.0, lr=0.05
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", recipe)
        trainer = Trainer(recipe, data.load("digits"), run, RUNTIME, torch.device("cpu"))
    unique = torch.arange(recipe.batch_size // recipe.repetition)
    draws = trainer.batches.draw(unique, trainer.stream.at("step", 0))
    losses = []
    for _ in range(4):  # the same batch: a step along its gradient must lower its loss
        trainer.step.meter.zero_()
        trainer.step(draws, 0.05, recipe.p)
        losses.append(trainer.step.meter[0].item())
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[3] < losses[0]


def test_published_protocols() -> None:
    """What the tables of the paper were made with."""
    cifar, tiny = named("cifar100/cut-mixmo"), named("tiny-imagenet/cut-mixmo")
    assert (cifar.architecture, cifar.batch_size, cifar.epochs, cifar.weight_decay) == ("wrn28_10", 64, 300, 6e-4)
    assert (cifar.members, cifar.mask, cifar.alpha, cifar.p, cifar.r) == (2, "cut", 2.0, 0.5, 3.0)
    assert cifar.replace(repetition=1).rate == pytest.approx(0.05)
    assert (tiny.architecture, tiny.batch_size, tiny.epochs, tiny.weight_decay) == ("preactresnet18_1", 100, 1200, 1e-4)
    assert tiny.replace(repetition=1).rate == pytest.approx(0.2)


@pytest.mark.parametrize("dataset", PROTOCOLS)
def test_batch_augmentation_keeps_rate_and_steps(dataset: str) -> None:
    """Mixup BA sees ten copies of each image a step, at the learning rate and in the steps of the plain network."""
    plain, augmented = named(f"{dataset}/mixup"), named(f"{dataset}/mixup-ba")
    assert augmented.rate == pytest.approx(plain.rate)
    assert augmented.repetition == 10
    assert augmented.batch_size // augmented.repetition == plain.batch_size


def test_every_name_resolves() -> None:
    assert len(names()) == len(set(names())) == len(METHODS) * len(PROTOCOLS) + 2 * len(METHODS_FAST)
    for name in names():
        dataset = name.split("/")[0]
        assert named(name).dataset in (dataset, f"folder:{dataset}@256")


def test_fast_recipes_keep_method_network_and_augmentation() -> None:
    """Only what the schedule is made of may differ from the published protocol."""
    allowed = {"batch_size", "precision", "schedule", "lr", "warmup", "epochs", "weight_decay", "average"}
    for method in METHODS_FAST:
        published, fast = (named(f"cifar100/{method}{end}").to_dict() for end in ("", "-fast"))
        assert {name for name in published if published[name] != fast[name]} <= allowed


def test_deep_ensemble_is_the_mean_of_its_networks(tmp_path: Path) -> None:
    recipe = named("digits/de2").replace(width=1, epochs=1, batch_size=128)
    run = train(recipe, tmp_path / "de", RUNTIME)
    assert [Run(path).recipe.seed for path in run.networks()] == [0, 1]
    logits, labels = zip(*(Run(path).logits() for path in run.networks()), strict=True)
    torch.testing.assert_close(run.logits(), (torch.cat(logits), labels[0]), rtol=0, atol=0)
    mean = torch.cat(logits).double().mean(0)
    scores = score_runs([run]).reports["last"]
    assert scores.ensemble.top1 == (mean.argmax(1) == labels[0]).double().mean().item()
    assert len(scores.members) == 2
    assert train(recipe, tmp_path / "de", RUNTIME, resume=True).finished


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"repetition": 3}, "does not divide batch_size = 64; take"),
        ({"members": 0}, "members = 0; it must be at least 1"),
        ({"p": -0.1}, "p = -0.1 is no probability"),
        ({"alpha": 0.0}, "alpha = 0.0"),
        ({"widht": 4}, "unknown field 'widht'; did you mean 'width'"),
        ({"depth": 27}, "6n \\+ 4"),
        ({"lr": 0.0}, "lr = 0.0"),
        ({"decay_rate": -1.0}, "decay_rate = -1.0"),
        ({"warmup": math.inf}, "warmup = inf; it cannot be negative or infinite"),
        ({"momentum": 1.0}, "momentum = 1.0; past steps would never fade"),
        ({"average": math.inf}, "average = inf"),
        ({"alpha": 1e300}, "alpha = 1e\\+300; all ratios are alike"),
        ({"lr": math.nan}, "lr is not a number"),
        ({"pixel": "cutmux"}, "did you mean 'cutmix'"),
        ({"pixel_p": 2.0}, "pixel_p = 2.0"),
        ({"pixel_alpha": 0.0}, "pixel_alpha = 0.0; the Beta distribution"),
        ({"saliency": "co-mixup", "members": 1, "batch_size": 46}, "cannot be cut into equal parts of 3 to 20"),
        ({"hidden": "patchup"}, "set members = 1"),
        ({"heads": 1}, "association = interpolated together"),
        ({"encoders": 3}, "encoders = 3"),
        ({"decay": (2.0,)}, "shares of the epochs"),
        ({"rho": 1.5}, "rho = 1.5"),
        ({"mask": "cutt"}, "did you mean 'cut'"),
        ({"precision": "fp16"}, "unknown precision 'fp16'"),
        ({"schedule": "linear"}, "unknown schedule 'linear'"),
        ({"model": "vgg"}, "unknown model family 'vgg'"),
        ({"epochs": "3"}, "epochs = '3' is of another type than int"),
        ({"epochs": 3.0}, "epochs = 3.0 is of another type than int"),
        ({"lr": np.float64(0.1)}, "lr = np.float64.0.1. is of another type than float"),
        ({"flip": "no"}, "flip = 'no' is of another type than bool"),
        ({"width": True}, "width = True"),
        ({"decay": [0.5]}, "decay = .0.5. is of another type than tuple"),
        ({"heads": 1.0}, "heads = 1.0 is of another type than int . None"),
    ],
)
def test_bad_recipes(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Recipe().replace(**changes)


def test_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'cifar100/cut-mixmo'"):
        named("cifar100/cutmixmo")


def test_a_recipe_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().width = 3  # type: ignore[misc]


def test_a_mask_too_large_for_the_image(tmp_path: Path) -> None:
    recipe = named("digits/patchup-mixmo").replace(model="preactresnet", depth=18, width=1)
    with pytest.raises(UserError, match="patchup"):
        train(recipe, tmp_path / "run", RUNTIME)
