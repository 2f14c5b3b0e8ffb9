"""Prediction and scores of whole splits during a training."""

import pytest
import torch
from torch import Tensor

from mixmo.data.types import Dataset
from mixmo.engine.distributed import World
from mixmo.engine.divergence import DivergedError
from mixmo.engine.scoring import Scorer
from mixmo.engine.source import hold_out
from mixmo.metrics.logits import LabelledLogits
from mixmo.recipes import named
from mixmo.utils.errors import UserError

RECIPE = named("digits/cut-mixmo").replace(width=1)


class Alone(World):
    """One of several processes, of which the others can read nothing."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def gather(self, values: Tensor, dim: int, count: int) -> Tensor:
        shape = list(values.shape)
        shape[dim] = count
        whole, part = values.new_zeros(shape), self.part(count)
        whole.narrow(dim, part.start, part.stop - part.start).copy_(values)
        return whole


def scorer(dataset: Dataset, world: World | None = None, validation: int = 0) -> Scorer:
    torch.manual_seed(0)
    held_out = hold_out(dataset.train, validation, 0)[1]
    return Scorer(RECIPE.network(10, (1, 8, 8)), RECIPE, dataset, held_out, world or World())


def test_each_process_predicts_its_part(digits: Dataset) -> None:
    """Class 0 too, which is not nothing. 360 images by seven are 52 for six of them and 48 for the last."""
    whole = scorer(digits).predict(digits.test)
    assert torch.equal(whole.labels, digits.test.labels)
    for rank, size, mine in ((1, 2, slice(180, 360)), (0, 7, slice(0, 52)), (6, 7, slice(312, 360))):
        logits, labels = scorer(digits, Alone(rank, size)).predict(digits.test)
        assert torch.equal(labels, digits.test.labels[mine])
        torch.testing.assert_close(logits, whole.logits[:, mine])
    with pytest.raises(UserError, match="none of 360 images"):
        scorer(digits, Alone(361, 400)).predict(digits.test)  # it has none


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_infinite_logits_mean_that_training_diverged(
    digits: Dataset, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.zeros(2, 360, 10)
    outputs = LabelledLogits(logits, digits.test.labels)
    monkeypatch.setattr("mixmo.engine.scoring.predict_split", lambda *_, **__: outputs)
    assert scorer(digits).score(digits.test).report.ensemble.top1 == pytest.approx(0.1, abs=0.01)
    logits[1, 200, 3] = wrong
    with pytest.raises(DivergedError, match="lower lr"):
        scorer(digits).score(digits.test)


def test_stored_logits_are_those_of_every_split(digits: Dataset) -> None:
    both, one = scorer(digits, validation=100), scorer(digits)
    assert (both.chooses, one.chooses) == ("validation", "test")
    stored = both.stored()
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == {
        "logits": (2, 360, 10),
        "labels": (360,),
        "validation_logits": (2, 100, 10),
        "validation_labels": (100,),
    }
    assert both.held_out is not None
    assert torch.equal(stored["validation_labels"], both.held_out.labels)
    assert torch.equal(stored["logits"], one.stored()["logits"])
