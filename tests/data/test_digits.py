import numpy as np
import torch
from sklearn.datasets import load_digits

from mixmo.data import load
from mixmo.data.digits import FILE


def test_pixels_are_those_of_scikit_learn():
    """Put back in their order by the stated rule, in a plain loop, the two splits are scikit-learn's images."""
    reference = load_digits()
    dataset = load("digits")
    seen = 0
    train, test = [], []
    for digit in range(10):
        for index in np.flatnonzero(reference.target == digit):
            (test if seen % 5 == 0 else train).append(index)
            seen += 1
    for split, indices in ((dataset.train, sorted(train)), (dataset.test, sorted(test))):
        expected = np.floor(reference.images[indices] * 255 / 16 + 0.5)
        assert np.array_equal(split.images[..., 0].numpy(), expected)
        assert np.array_equal(split.labels.numpy(), reference.target[indices])


def test_split_is_stratified():
    dataset = load("digits")
    train, test = (torch.bincount(split.labels) for split in (dataset.train, dataset.test))
    assert (train.sum(), test.sum()) == (1437, 360)
    assert (test - (train + test) / 5).abs().max() < 1


def test_statistics_are_those_of_the_train_images():
    dataset = load("digits")
    pixels = dataset.train.images.double() / 255
    assert round(float(pixels.mean()), 4) == dataset.mean[0]
    assert round(float(pixels.std(correction=0)), 4) == dataset.std[0]
    assert int(dataset.train.images.min()) == 0
    assert int(dataset.train.images.max()) == 255


def test_file_is_small_licensed_and_free_of_pickles():
    assert FILE.stat().st_size < 60_000
    assert "CC BY 4.0" in FILE.with_suffix(".LICENSE").read_text()
    with np.load(FILE, allow_pickle=False) as arrays:
        assert {name: arrays[name].shape for name in arrays} == {"counts": (1797, 8, 8), "labels": (1797,)}
