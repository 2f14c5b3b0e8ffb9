"""The rows of a benchmark and their relations; not how fast this machine is."""

import pytest
import torch

from mixmo.data.types import Dataset
from mixmo.engine.benchmark import benchmark, synthetic
from mixmo.recipes import named
from mixmo.utils.errors import UserError

CPU = torch.device("cpu")
TRAINING = ["training step", "training end to end"]


def test_a_benchmark_has_every_row(digits: Dataset) -> None:
    recipe = named("digits/cut-mixmo").replace(width=1, batch_size=32)
    *_, result = benchmark(recipe, CPU, seconds=0.01, repeats=2)
    found = [(row.network, row.what) for row in result.rows]
    assert found == [
        *[("vanilla", what) for what in ("plain eager loop", *TRAINING, "prediction")],
        *[("M=2", what) for what in (*TRAINING, "prediction", "prediction, folded")],
    ]
    for row in result.rows:
        images = len(digits.test.labels) if row.what.startswith("prediction") else recipe.batch_size
        assert row.images_per_second * row.milliseconds / 1000 == pytest.approx(images)
        assert row.share_of_peak == pytest.approx(row.tflops / result.peak_tflops)
        assert row.share_of_peak > 0
        assert row.share_of_fp8_peak is None
        assert row.spread >= 0


def test_random_images_have_the_shape_of_the_data_set(digits: Dataset) -> None:
    made = synthetic("digits", CPU)
    for ours, real in ((made.train, digits.train), (made.test, digits.test)):
        assert ours.images.shape == real.images.shape
        assert ours.labels.shape == real.labels.shape
    assert len(made.classes) == len(digits.classes)


def test_a_data_set_of_unknown_shape_is_rejected() -> None:
    with pytest.raises(UserError, match="folder:imagenet@256"):
        synthetic("folder:imagenet@256", CPU)
