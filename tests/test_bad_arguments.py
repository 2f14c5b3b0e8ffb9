"""Public functions reject tensors, labels and names that they cannot use, by one sentence, and write nothing."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mixmo

N, K = 4, 10
X = torch.randn(N, 3, 8, 8, generator=torch.Generator().manual_seed(0))
SOFT = torch.full((N, K), 1 / K)
NEGATIVE = SOFT.index_fill(1, torch.tensor(0), -0.1).index_fill(1, torch.tensor(1), 0.3)  # sums to 1
LABELS = torch.arange(N)
LOGITS = torch.randn(2, 50, K, generator=torch.Generator().manual_seed(0))
FACTS: dict[str, Any] = {"size": (3, 8, 8), "mean": (0.5,) * 3, "std": (0.2,) * 3}


@pytest.fixture(scope="module")
def net() -> mixmo.Network:
    return mixmo.create("wrn10_1", classes=K, members=2).eval()


def mix(labels: Any, images: Any = X) -> Callable[[mixmo.Network, Path], object]:
    return lambda *_: mixmo.Mixer()(images, labels)


def loss(targets: Any, logits: Any = SOFT) -> Callable[[mixmo.Network, Path], object]:
    return lambda *_: mixmo.MixMoLoss()(logits, targets)


def predict(images: Any = X, **given: Any) -> Callable[[mixmo.Network, Path], object]:
    return lambda net, _: mixmo.predict(net, images, **given)


def export(**given: Any) -> Callable[[mixmo.Network, Path], object]:
    return lambda net, folder: mixmo.export(net, folder / "net.onnx", size=(3, 8, 8), **given)


def about(**given: Any) -> Callable[[mixmo.Network, Path], object]:
    return lambda *_: mixmo.About(**{**FACTS, **given})


def mixer(**given: Any) -> Callable[[mixmo.Network, Path], object]:
    return lambda *_: mixmo.Mixer(**given)


def calibrate(logits: Any = LOGITS, labels: Any = None, **given: Any) -> Callable[[mixmo.Network, Path], object]:
    return lambda *_: mixmo.calibrate(logits, torch.zeros(50).long() if labels is None else labels, **given)


CASES = {
    "negative soft labels": (mix(NEGATIVE), "soft target has -0.1"),
    "complex soft labels": (mix(SOFT + 0j), "real"),
    "NaN soft labels": (mix(SOFT * math.nan), "sums to nan"),
    "labels (N, 2, 2)": (mix(torch.zeros(N, 2, 2)), r"\(4, 2, 2\)"),
    "float labels": (mix(torch.ones(N)), "integer"),
    "negative labels": (mix(LABELS - 2), "label is -2"),
    "text labels": (mix(["a"] * N), "labels are a list"),
    "sparse labels": (mix(SOFT.to_sparse()), "sparse"),
    "sparse images": (mix(LABELS, X.to_sparse()), "sparse"),
    "fractional members": (mixer(members=2.5), "members = 2.5"),
    "text alpha": (mixer(alpha="a"), "alpha = 'a'"),
    "no p": (mixer(p=None), "p = None"),
    "loss of negative targets": (loss(NEGATIVE), "soft target has -0.1"),
    "loss of complex targets": (loss(SOFT + 0j), "real"),
    "loss of sparse targets": (loss(SOFT.to_sparse()), "sparse"),
    "loss of a list": (loss([1, 2, 3, 4]), "targets are a list"),
    "loss of complex logits": (loss(LABELS, SOFT + 0j), "real"),
    "sparse pictures": (predict(X.to_sparse()), "sparse"),
    "objects": (predict(X.numpy().astype(object)), "object"),
    "batch of 10**30": (predict(batch_size=10**30), "below 2"),
    "fractional images per pass": (predict(images_per_pass=2.0), "images_per_pass = 2.0"),
    "no network": (lambda *_: mixmo.predict([], X), "no network"),
    "test labels + 100": (export(test=(X, LABELS + 100)), "100 to 103; classes are 0 to 9"),
    "test without labels": (export(test=(X,)), "pair"),
    "too few test labels": (export(test=(X, LABELS[1:])), "test labels"),
    "soft test labels": (export(test=(X, SOFT)), "test labels"),
    "no test images": (export(test=(X[:0], LABELS[:0])), r"\(0, 3, 8, 8\)"),
    "sparse calibration": (export(calibration=X.to_sparse(), precision="int8"), "sparse"),
    "classes of one text": (export(classes="abcdefghij"), "classes = 'abcdefghij'"),
    "twice the same class": (export(classes=["a"] * K), "'a' twice"),
    "numbers as classes": (export(classes=list(range(K))), "as text"),
    "text temperature": (export(temperature="a"), "temperature = 'a'"),
    "classes of metadata": (about(classes="abc"), "classes = 'abc'"),
    "same classes of metadata": (about(classes=("a", "b", "a")), "'a' twice"),
    "negative size": (about(size=(3, -8, 8)), "size"),
    "NaN mean": (about(mean=(math.nan,) * 3), "mean"),
    "complex logits": (calibrate(LOGITS + 0j), "real"),
    "complex labels": (calibrate(labels=torch.zeros(50) + 0j), "real"),
    "text level": (calibrate(level="a"), "level = 'a'"),
    "seed of 10**30": (calibrate(seed=10**30), "seed"),
    "classes of 10**30": (lambda *_: mixmo.create("wrn10_1", classes=10**30), "classes"),
    "depth of 5,000 digits": (lambda *_: mixmo.create(f"wrn{'9' * 5000}_1", classes=2), "model"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_arguments_raise_one_sentence(case: str, net: mixmo.Network, tmp_path: Path) -> None:
    call, word = CASES[case]
    with pytest.raises(mixmo.UserError, match=word) as caught:
        call(net, tmp_path)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
