"""Learning rate, warm-up and p against the reference, step by step."""

from itertools import pairwise

import numpy as np
import pytest

from mixmo.engine.schedule import Schedule
from mixmo.recipes import named

CIFAR = named("cifar100/cut-mixmo").replace(repetition=4)
TINY = named("tiny-imagenet/cut-mixmo").replace(repetition=4)


def test_decay_by_epoch(reference: dict[str, np.ndarray]) -> None:
    for recipe, samples, known in (
        (CIFAR, 50_000, "schedule/lr_cifar_b4_epoch1to300"),
        (TINY, 100_000, "schedule/lr_tiny_b4_epoch1to1200"),
    ):
        schedule = Schedule(recipe.replace(warmup=0.0), samples)
        ours = [schedule.lr(epoch * schedule.steps_per_epoch) for epoch in range(recipe.epochs)]
        np.testing.assert_allclose(ours, reference[known], rtol=1e-12)


def test_warmup_by_step(reference: dict[str, np.ndarray]) -> None:
    schedule = Schedule(CIFAR, 50_000)
    known = reference["schedule/warmup_lr_cifar_b4_step1to3130"]
    np.testing.assert_allclose([schedule.lr(step) for step in range(len(known))], known, rtol=1e-12)


def test_patch_probability_by_epoch(reference: dict[str, np.ndarray]) -> None:
    schedule, mixer = Schedule(CIFAR, 50_000), CIFAR.mixer()
    ours = [mixer.chance(schedule.progress(epoch * schedule.steps_per_epoch)) for epoch in range(300)]
    np.testing.assert_allclose(ours, reference["schedule/p_epoch1to300"], atol=1e-12)


@pytest.mark.parametrize("repetition", [1, 2, 4])
def test_repetition_keeps_the_data_and_divides_the_rate(repetition: int) -> None:
    schedule = Schedule(CIFAR.replace(repetition=repetition), 50_000)
    assert schedule.steps_per_epoch == 50_000 * repetition // 64
    assert schedule.lr(schedule.steps_per_epoch * 2) == pytest.approx(0.05 / repetition)


def test_decay_scales_with_the_epochs() -> None:
    schedule = Schedule(CIFAR.replace(epochs=30), 50_000)
    rates = [schedule.lr(epoch * schedule.steps_per_epoch + 3200 * (epoch == 0)) for epoch in range(30)]
    changes = [epoch for epoch in range(1, 30) if rates[epoch] < 0.5 * rates[epoch - 1]]
    assert changes == [10, 20, 22]


def test_cosine_ends_at_zero() -> None:
    schedule = Schedule(CIFAR.replace(epochs=3, schedule="cosine"), 50_000)
    rates = [schedule.lr(step) for step in range(schedule.steps)]
    assert max(rates) == pytest.approx(CIFAR.rate, rel=1e-6)
    assert rates[-1] == pytest.approx(0, abs=1e-12)
    assert all(after <= before for before, after in pairwise(rates[3200:]))
