"""Training on the real CIFAR-100."""

from pathlib import Path

import pytest

from mixmo import data
from mixmo.data.types import Dataset, Split
from mixmo.engine import Runtime, train
from mixmo.recipes import named

IMAGES = 15_000  # of 50,000, for the sake of time


@pytest.mark.slow
def test_an_epoch_of_cifar100_beats_chance(
    cifar100_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = named("cifar100/cut-mixmo").replace(depth=10, width=1, repetition=1, epochs=1, batch_size=100)
    recipe = recipe.replace(lr=0.5, warmup=0.2)
    whole = data.load

    def some(*arguments: object) -> Dataset:
        dataset = whole(*arguments)  # type: ignore[arg-type]
        assert len(dataset.train.labels) == 50_000
        return dataset._replace(train=Split(dataset.train.images[:IMAGES], dataset.train.labels[:IMAGES]))

    monkeypatch.setattr(data, "load", some)
    run = train(recipe, tmp_path / "run", Runtime(device="cpu", data=cifar100_root, quiet=True))
    (line,) = run.read_metrics()
    assert line["step"] == IMAGES // 100
    assert line["test"]["ensemble"]["top1"] > 0.03  # chance is 0.01
    assert line["test"]["ensemble"]["nll"] < 4.5  # chance is log 100 = 4.605
