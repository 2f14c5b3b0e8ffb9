"""Diagrams against plain loops, scikit-learn, and the scores that are computed without them."""

from collections.abc import Callable

import pytest
import torch
from sklearn.metrics import confusion_matrix
from torch import Tensor

from mixmo.metrics.diagrams import aurc, confusion, reliability, risk_coverage
from mixmo.metrics.scores import ece, top1

Draw = Callable[..., tuple[Tensor, Tensor]]


@pytest.fixture
def sample(draw: Draw) -> tuple[Tensor, Tensor]:
    logits_MNK, labels_N = draw(1, 300, 7)
    return logits_MNK[0], labels_N


def test_bins_hold_every_sample_and_give_the_calibration_error(sample: tuple[Tensor, Tensor]) -> None:
    logits_NK, labels_N = sample
    found = reliability(logits_NK, labels_N)
    assert int(found.samples.sum()) == 300
    gap = (found.samples * (found.confidence - found.accuracy).abs()).sum() / 300
    assert gap.item() == pytest.approx(ece(logits_NK, labels_N).item(), abs=1e-12)


def test_bins_are_those_of_a_plain_loop(sample: tuple[Tensor, Tensor]) -> None:
    logits_NK, labels_N = sample
    found = reliability(logits_NK, labels_N, bins=10)
    p_NK = logits_NK.softmax(1)
    for b in range(10):
        inside = [n for n in range(300) if b / 10 < p_NK[n].max().item() <= (b + 1) / 10]
        assert found.samples[b] == len(inside)
        if inside:
            right = [p_NK[n].argmax() == labels_N[n] for n in inside]
            assert found.accuracy[b].item() == pytest.approx(sum(map(float, right)) / len(inside))


def test_area_under_the_risk_coverage_curve_is_that_of_a_plain_loop(sample: tuple[Tensor, Tensor]) -> None:
    logits_NK, labels_N = sample
    p_NK = logits_NK.softmax(1)
    order = sorted(range(300), key=lambda n: -p_NK[n].max().item())
    wrong, risks = 0, []
    for count, n in enumerate(order, 1):
        wrong += int(p_NK[n].argmax() != labels_N[n])
        risks.append(wrong / count)
    assert aurc(logits_NK, labels_N).item() == pytest.approx(sum(risks) / 300)
    coverage, risk = risk_coverage(logits_NK, labels_N)
    assert coverage[-1] == 1
    assert risk[-1].item() == pytest.approx(1 - top1(logits_NK, labels_N).item())


def test_no_wrong_prediction_has_no_area() -> None:
    assert aurc(5 * torch.eye(4), torch.arange(4)).item() == 0


def test_confusion_is_that_of_scikit_learn(sample: tuple[Tensor, Tensor]) -> None:
    logits_NK, labels_N = sample
    expected = confusion_matrix(labels_N, logits_NK.argmax(1), labels=range(7))
    assert confusion(logits_NK, labels_N).tolist() == expected.tolist()
