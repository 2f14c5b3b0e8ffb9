"""A training that starts from a trained network: other members, other classes, its normalisation, resumed."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import mixmo
from helpers import assert_same
from mixmo import UserError
from mixmo.cli.app import main
from mixmo.data.types import Dataset, Split
from mixmo.engine import Runtime, train
from mixmo.engine.initialization import fresh_network
from mixmo.evaluation.run_scores import score_runs
from mixmo.models import Network
from mixmo.recipes import Recipe, named
from mixmo.runs.directory import Run
from mixmo.storage.weights import load_tensors

RUNTIME = Runtime(device="cpu", quiet=True)
PLAIN = named("digits/vanilla").replace(epochs=1, width=1, batch_size=128)
PAIR = named("digits/cut-mixmo").replace(epochs=1, width=1, batch_size=128)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A network of one member, trained for an epoch."""
    return train(PLAIN, tmp_path_factory.mktemp("start") / "plain", RUNTIME)


def test_both_members_begin_as_the_plain_network(plain: Run, digits: Dataset) -> None:
    net, given = fresh_network(PAIR.replace(start=str(plain.path)), digits).eval(), mixmo.load(plain.path)
    images = torch.randn(5, 1, 8, 8)
    expected = given.each(images)[0]
    assert torch.allclose(net.each(images), expected.expand(2, -1, -1), atol=1e-4)
    assert not torch.equal(net.encoders[0].weight, net.encoders[1].weight)


def test_it_begins_alike_each_time_and_by_its_seed(plain: Run, digits: Dataset) -> None:
    recipe = PAIR.replace(start=str(plain.path))
    one, two, other = (fresh_network(r, digits) for r in (recipe, recipe, recipe.replace(seed=1)))
    assert torch.equal(one.encoders[0].weight, two.encoders[0].weight)
    assert not torch.equal(one.encoders[0].weight, other.encoders[0].weight)


def test_heads_are_new_for_other_classes(plain: Run, digits: Dataset) -> None:
    for classes in (("a", "b", "c"), tuple("abcdefghij")):  # fewer, and ten others
        net = fresh_network(PAIR.replace(start=str(plain.path)), digits._replace(classes=classes))
        given = mixmo.load(plain.path)
        for ours, theirs in zip(net.core.parameters(), given.core.parameters(), strict=True):  # type: ignore[operator,union-attr]
            assert torch.equal(ours, theirs)
        assert net.heads[0].weight.shape[0] == len(classes)
        assert not torch.equal(net.heads[0].weight[:3], given.heads[0].weight[:3])  # type: ignore[union-attr]


def test_a_shipped_network_is_one_to_start_from() -> None:
    (name,) = [name for name in mixmo.shipped() if name == "cifar100/cut-mixmo-wrn28-4"]
    net = mixmo.load(name)
    images = torch.zeros(1, 32, 32, 3, dtype=torch.uint8)
    split = Split(images, torch.zeros(1, dtype=torch.int64))
    dataset = Dataset("cifar100", split, split, net.about.classes, net.about.mean, net.about.std)  # type: ignore[union-attr]
    begun = fresh_network(named("cifar100/cut-mixmo").replace(width=4, start=name), dataset)
    for key, tensor in net.state_dict().items():
        assert torch.equal(begun.state_dict()[key], tensor), key


def test_training_goes_on_from_there_and_resumes_without_it(plain: Run, tmp_path: Path) -> None:
    start = tmp_path / "start"
    shutil.copytree(plain.path, start)
    recipe = PAIR.replace(epochs=2, lr=0.01, start=str(start))
    whole = train(recipe, tmp_path / "whole", RUNTIME)
    scratch = train(recipe.replace(start=None), tmp_path / "scratch", RUNTIME)
    first, without = (run.read_metrics()[0]["test"]["ensemble"]["nll"] for run in (whole, scratch))
    assert first < without
    train(recipe, tmp_path / "halved", RUNTIME, until=30)
    shutil.rmtree(start)
    halved = train(recipe, tmp_path / "halved", RUNTIME, resume=True)
    one, two = (load_tensors(run.path / "last.safetensors") for run in (whole, halved))
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize(
    ("change", "word"), [({"width": 2}, "another network than the recipe's"), ({"start": "nowhere"}, "nowhere")]
)
def test_a_start_network_that_does_not_fit_is_rejected(
    plain: Run, digits: Dataset, tmp_path: Path, change: dict[str, object], word: str
) -> None:
    recipe: Recipe = PAIR.replace(**{"start": str(plain.path), **change})  # type: ignore[arg-type]
    with pytest.raises(UserError, match=word):
        train(recipe, tmp_path / "run", RUNTIME)
    assert not (tmp_path / "run").exists()


def test_a_start_network_of_another_kind_raises(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [torch.nn.Conv2d(1, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 10)]
    wrapped = mixmo.wrap(torch.nn.Sequential(*layers), size=(1, 8, 8))
    monkeypatch.setattr("mixmo.engine.initialization.load", lambda _: wrapped)
    with pytest.raises(UserError, match="another network than the recipe's"):
        fresh_network(PAIR.replace(start="somewhere"), digits)


def test_the_start_network_s_normalisation_is_used_and_kept(
    plain: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In training, on resume without the start network, in the run's metadata and scores; the header names it."""
    start = Path(shutil.copytree(plain.path, tmp_path / "start"))
    record = json.loads((start / "dataset.json").read_text()) | {"mean": [0.25], "std": [0.5]}
    (start / "dataset.json").write_text(json.dumps(record))
    (start / "SHA256SUMS").unlink()
    recipe = PAIR.replace(lr=0.01, start=str(start))
    whole = train(recipe, tmp_path / "whole", Runtime(device="cpu"))
    assert "images normalised with mean 0.25, std 0.5" in capsys.readouterr().err
    train(recipe, tmp_path / "halved", RUNTIME, until=5)
    shutil.rmtree(start)
    assert_same(train(recipe, tmp_path / "halved", RUNTIME, resume=True), whole)
    about = mixmo.load(whole.path).about
    assert about is not None
    assert (about.mean, about.std) == ((0.25,), (0.5,))
    assert score_runs([whole], "weights").reports == score_runs([whole]).reports


def test_the_command_suggests_a_smaller_learning_rate(
    plain: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "digits/cut-mixmo", "--start", str(plain.path), "--width", "1", "--epochs", "1"]
    words += ["--device", "cpu", "--batch_size", "512"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    assert "--lr 0.02" in capsys.readouterr().err
    assert isinstance(mixmo.load(tmp_path / "run"), Network)
    assert Run.open(tmp_path / "run").recipe.start == str(plain.path)
    assert main([*words, "--lr", "0.01", "--out", str(tmp_path / "lower")]) == 0
    assert "--lr" not in capsys.readouterr().err
