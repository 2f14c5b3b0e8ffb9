"""Training on the real CIFAR-100."""

from pathlib import Path

import pytest

from mixmo import data
from mixmo.data.types import Dataset, Split
from mixmo.engine import Runtime, train
from mixmo.recipes import named

TRAIN, TEST = 7_500, 2_000  # of 50,000 and 10,000, for the sake of time


def first(split: Split, count: int) -> Split:
    return Split(split.resident[:count], split.labels[:count])


@pytest.mark.slow
def test_an_epoch_of_cifar100_beats_chance(
    cifar100_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = named("cifar100/cut-mixmo").replace(depth=10, width=1, repetition=1, epochs=1, batch_size=50)
    recipe = recipe.replace(lr=1.0, warmup=0.2)
    whole = data.load

    def some(*arguments: object) -> Dataset:
        dataset = whole(*arguments)  # type: ignore[arg-type]
        assert (len(dataset.train.labels), len(dataset.test.labels)) == (50_000, 10_000)
        return dataset._replace(train=first(dataset.train, TRAIN), test=first(dataset.test, TEST))

    monkeypatch.setattr(data, "load", some)
    run = train(recipe, tmp_path / "run", Runtime(device="cpu", data=cifar100_root, quiet=True))
    (line,) = run.read_metrics()
    assert line["step"] == TRAIN // 50
    assert line["test"]["ensemble"]["top1"] > 0.03  # chance is 0.01
    assert line["test"]["ensemble"]["nll"] < 4.5  # chance is log 100 = 4.605
