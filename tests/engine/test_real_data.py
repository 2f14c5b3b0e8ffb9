"""One epoch on the real CIFAR-100."""

from pathlib import Path

import pytest

from mixmo.engine import Runtime, train
from mixmo.recipes import named


@pytest.mark.slow
def test_an_epoch_of_cifar100_beats_chance(cifar100_root: Path, tmp_path: Path) -> None:
    recipe = named("cifar100/cut-mixmo").replace(depth=10, width=1, repetition=1, epochs=1, batch_size=250, lr=0.2)
    runtime = Runtime(device="cpu", data=cifar100_root, quiet=True)
    run = train(recipe, tmp_path / "run", runtime)
    (line,) = run.metrics()
    assert line["step"] == 200
    assert line["test"]["ensemble"]["top1"] > 0.03  # chance is 0.01
    assert line["test"]["ensemble"]["nll"] < 4.5  # chance is log 100 = 4.605
