"""The timed step is that of the training loop, on random images."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from mixmo.data.types import Dataset
from mixmo.engine.batch import Draws
from mixmo.engine.estimate import Estimate, estimate
from mixmo.engine.step import Graph
from mixmo.engine.step_timer import StepTimer, random_dataset
from mixmo.recipes import Recipe, named
from mixmo.recipes.protocols import Facts
from mixmo.utils import memory
from mixmo.utils.errors import UserError

CPU = torch.device("cpu")
FACTS = Facts(samples=22, tested=6, size=(1, 8, 8), classes=4)
TINY = named("digits/cut-mixmo").replace(width=1, batch_size=8, repetition=2)  # 4 images a step, 5 steps an epoch


def timer(recipe: Recipe = TINY) -> StepTimer:
    return StepTimer(recipe, random_dataset("random", FACTS, CPU), CPU, compiled=False)


def recorded(made: StepTimer, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Draws, float, float, float]]:
    """What its steps are asked for from now on; none is made."""
    seen: list[tuple[Draws, float, float, float]] = []
    monkeypatch.setattr(made, "step", lambda *asked: seen.append(asked))
    return seen


def test_steps_walk_through_the_images_epoch_by_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = timer()
    seen = recorded(made, monkeypatch)
    for _ in range(7):
        made.next_step()
    samples = [draws.unique.tolist() for draws, *_ in seen]
    epoch = [number for step in samples[:5] for number in step]
    assert len(set(epoch)) == 20 == len(epoch)
    assert epoch != sorted(epoch)
    assert samples[5:] == samples[:2]
    assert [lr for _, lr, *_ in seen] == [made.schedule.lr(number) for number in range(7)]
    assert {chance for _, _, chance, _ in seen} == {made.batches.mixer.chance(0.0)}
    assert not torch.equal(seen[0][0].order, seen[5][0].order)  # the same images, drawn anew


def test_the_step_alone_is_the_first_one_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = timer()
    seen = recorded(made, monkeypatch)
    made.same_step()
    made.same_step()
    made.next_step()
    alone, again, first = seen
    assert alone[0] is again[0]
    assert alone[1:] == again[1:] == first[1:]
    assert torch.equal(alone[0].unique, first[0].unique)
    assert torch.equal(alone[0].order, first[0].order)


def test_the_same_steps_each_time() -> None:
    def trained() -> Tensor:
        made = timer()
        made.next_step()
        made.same_step()
        return torch.cat([parameter.flatten() for parameter in made.net.parameters()])

    assert torch.equal(trained(), trained())


def test_warm_up_lasts_until_a_graph_would_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = timer()
    seen = recorded(made, monkeypatch)
    clock = iter([3.0, 5.5])
    monkeypatch.setattr("mixmo.engine.step_timer.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert made.warm_up() == 2.5
    assert len(seen) == Graph.WARMUP + 1


@pytest.mark.parametrize(("each", "measured"), [(0.5, 20), (2.0, 10)])
def test_an_estimate_is_of_the_steps_after_the_warm_up(
    monkeypatch: pytest.MonkeyPatch, each: float, measured: int
) -> None:
    """As many as there are in twenty seconds, and no more than twenty."""
    now, steps = 0.0, 0

    def next_step(_: StepTimer) -> None:
        nonlocal now, steps
        now, steps = now + (each if steps else 100.0), steps + 1

    monkeypatch.setattr(StepTimer, "next_step", next_step)
    monkeypatch.setattr("mixmo.engine.estimate.time", SimpleNamespace(monotonic=lambda: now))
    recipe = TINY.replace(epochs=3, validation=6)  # 16 images are left: 4 steps
    assert estimate(recipe, FACTS, CPU) == Estimate("CPU", 12, 4, each, 12 * each)
    assert steps == 1 + measured
    assert estimate(recipe, FACTS, CPU, measure=False) == Estimate("CPU", 12, 4, 0.0, None)


def test_a_step_that_exceeds_the_memory_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "total", lambda _: 400_000)  # the weights alone would fit
    with pytest.raises(UserError, match="needs more than"):
        timer()


def test_random_images_are_of_every_value_and_class() -> None:
    def made() -> Dataset:
        return random_dataset("random", FACTS._replace(samples=200, size=(3, 8, 4)), CPU)

    found, again = made(), made()
    assert found.train.images.shape == (200, 8, 4, 3)
    assert found.test.images.shape == (6, 8, 4, 3)
    assert found.train.images.unique().tolist() == list(range(256))
    assert found.train.images.dtype == torch.uint8
    assert found.train.labels.unique().tolist() == [0, 1, 2, 3]
    assert found.classes == ("0", "1", "2", "3")
    assert len(found.mean) == len(found.std) == 3
    assert torch.equal(found.train.images, again.train.images)
    assert torch.equal(found.train.labels, again.train.labels)
