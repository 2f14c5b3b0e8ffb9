"""Recipes: invalid fields raise an error, and every named recipe trains."""

import dataclasses
import math
import re
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
from mixmo.recipes.fields import check_field
from mixmo.recipes.finetune import METHODS_FINETUNE
from mixmo.recipes.schema import DEFAULTS, FIELDS, HINTS
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


def test_protocols_are_those_published() -> None:
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


def test_every_name_gives_a_recipe_of_its_data_set() -> None:
    assert (
        len(names())
        == len(set(names()))
        == len(METHODS) * len(PROTOCOLS) + 2 * len(METHODS_FAST) + len(METHODS_FINETUNE)
    )
    for name in names():
        dataset = {"finetune": "folder:photos@224", "imagenet": "folder:imagenet@256"}
        protocol = name.split("/")[0]
        assert named(name).dataset == dataset.get(protocol, protocol)


def test_fast_recipes_keep_method_network_and_augmentation() -> None:
    """Only what the schedule is made of may differ from the published protocol."""
    allowed = {"batch_size", "precision", "schedule", "lr", "warmup", "epochs", "weight_decay", "average"}
    for method in METHODS_FAST:
        published, fast = (named(f"cifar100/{method}{end}").to_dict() for end in ("", "-fast"))
        assert {name for name in published if published[name] != fast[name]} <= allowed


def test_deep_ensemble_is_the_mean_of_its_networks(tmp_path: Path) -> None:
    recipe = named("digits/de2").replace(width=1, epochs=1, batch_size=128)
    run = train(recipe, tmp_path / "de", RUNTIME)
    assert [Run.open(path).recipe.seed for path in run.network_paths()] == [0, 1]
    logits, labels = zip(*(Run.open(path).read_logits() for path in run.network_paths()), strict=True)
    torch.testing.assert_close(run.read_logits(), (torch.cat(logits), labels[0]), rtol=0, atol=0)
    mean = torch.cat(logits).double().mean(0)
    scores = score_runs([run]).reports["last"]
    assert scores.ensemble.top1 == (mean.argmax(1) == labels[0]).double().mean().item()
    assert len(scores.members) == 2
    assert train(recipe, tmp_path / "de", RUNTIME, resume=True).is_finished()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"members": 0}, "members"),
        ({"p": -0.1}, "p"),
        ({"alpha": 0.0}, "alpha"),
        ({"depth": 27}, "depth"),
        ({"lr": 0.0}, "lr"),
        ({"lr": math.nan}, "lr"),
        ({"momentum": 1.0}, "momentum"),
        ({"warmup": math.inf}, "warmup"),
        ({"decay": (2.0,)}, "decay"),
        ({"decay_rate": -1.0}, "decay_rate"),
        ({"rho": 1.5}, "rho"),
        ({"pixel_alpha": 0.0}, "pixel_alpha"),
        ({"size": 0}, "size"),
        ({"encoders": 3}, "encoders"),
        ({"heads": 1}, "association"),
        ({"repetition": 3}, "batch_size"),
        ({"ghost": 48}, "ghost"),
        ({"saliency": "co-mixup", "members": 1, "batch_size": 46}, "batch_size"),
        ({"feature_mixing": "patchup"}, "members"),
        ({"subnets": 3}, "members"),
    ],
)
def test_value_out_of_range_is_an_error_that_names_the_field(changes: dict[str, object], field: str) -> None:
    with pytest.raises(UserError, match=rf"\b{field}\b"):
        Recipe().replace(**changes)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"epochs": "3"}, "int >= 1"),
        ({"epochs": 3.0}, "int >= 1"),
        ({"width": True}, r"int in \[1, 10000\]"),
        ({"heads": 1.0}, r"int \| None"),
        ({"lr": np.float64(0.1)}, "float > 0"),
        ({"flip": "no"}, "bool"),
        ({"decay": [0.5]}, "tuple"),
    ],
)
def test_value_of_another_type_is_an_error_that_names_the_type(changes: dict[str, object], wanted: str) -> None:
    with pytest.raises(UserError, match=wanted):
        Recipe().replace(**changes)


@pytest.mark.parametrize(
    ("changes", "nearest"),
    [
        ({"widht": 4}, "width"),
        ({"pixel": "cutmux"}, "cutmix"),
        ({"mask": "cutt"}, "cut"),
        ({"precision": "fp31"}, "fp32"),
        ({"schedule": "cosin"}, "cosine"),
        ({"model": "wn"}, "wrn"),
    ],
)
def test_unknown_name_is_an_error_that_names_the_nearest(changes: dict[str, object], nearest: str) -> None:
    with pytest.raises(UserError, match=nearest):
        Recipe().replace(**changes)


def test_recipe_equals_the_one_read_from_its_dictionary_also_with_earlier_field_names() -> None:
    for name in names():
        fields = named(name).to_dict()
        assert Recipe.from_dict(fields) == named(name)
        fields["hidden"] = fields.pop("feature_mixing")
        assert Recipe.from_dict(fields) == named(name)


def test_defaults_are_allowed_values() -> None:
    """A recipe does not check them again."""
    for name in FIELDS:
        check_field(name, DEFAULTS[name], HINTS[name])


def test_unknown_recipe_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'cifar100/cut-mixmo'"):
        named("cifar100/cutmixmo")


def test_recipe_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().width = 3  # type: ignore[misc]


def test_mask_larger_than_the_features_is_an_error(tmp_path: Path) -> None:
    recipe = named("digits/patchup-mixmo").replace(model="preactresnet", depth=18, width=1)
    with pytest.raises(UserError, match="patchup"):
        train(recipe, tmp_path / "run", RUNTIME)


def test_the_guide_names_the_methods_that_need_a_network_family() -> None:
    """Every other published recipe accepts a backbone."""
    refused = []
    for method in METHODS:
        try:
            named(f"cifar100/{method}").replace(model="timm/resnet18")
        except UserError:
            refused.append(method)
    guide = next((Path(__file__).parents[2] / "docs").rglob("fine-tune.md")).read_text()
    listed = guide.partition("accept a backbone too")[2].partition("\n\n")[0].partition("except those")[2]
    assert re.findall(r"`(.+?)`", listed) == refused
