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


def weighted(class_weights: Any) -> Callable[[mixmo.Network, Path], object]:
    return lambda *_: mixmo.loss(LOGITS[:, :N], mixmo.Mixer()(X, LABELS), class_weights=class_weights)


def create(**given: Any) -> Callable[[mixmo.Network, Path], object]:
    return lambda *_: mixmo.create("wrn10_1", **{"classes": K, **given})


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
    "classes of 10**30": (create(classes=10**30), "classes"),
    "classes of 10**11": (create(classes=10**11), "at most 10,000,000"),
    "channels of 10**18": (create(channels=10**18), "at most 10,000"),
    "negative class weights": (weighted(torch.linspace(-1, 1, K)), "a class weight is -1"),
    "NaN class weights": (weighted(torch.full((K,), math.nan)), "a class weight is nan"),
    "sparse class weights": (weighted(torch.ones(K).to_sparse()), "sparse"),
    "a list of class weights": (weighted([1.0] * K), "class_weights are a list"),
    "text label smoothing": (
        lambda *_: mixmo.loss(LOGITS[:, :N], mixmo.Mixer()(X, LABELS), label_smoothing="a"),
        "= 'a'",
    ),
    "text generator": (lambda *_: mixmo.Mixer()(X, LABELS, 0.0, "g"), "generator = 'g'"),
    "pictures without values": (predict(X.to("meta")), "meta device"),
    "test images without values": (export(test=(X.to("meta"), LABELS)), "meta device"),
    "logits without values": (calibrate(LOGITS.to("meta")), "meta device"),
    "large unsigned labels": (calibrate(labels=torch.full((50,), 2**63, dtype=torch.uint64)), "not class indices"),
    "large unsigned test labels": (export(test=(X, (LABELS + 100).to(torch.uint64))), "100 to 103"),
    "a tensor as size": (about(size=X), "size = tensor"),
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
