"""What is computed from logits for a report, against plain loops and scikit-learn."""

from collections.abc import Callable

import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_score, recall_score
from torch import Tensor

from mixmo.metrics import evaluate
from mixmo.metrics.logits import LabelledLogits
from mixmo.reports.analysis import analyse_logits
from mixmo.reports.calibration_charts import interval

Draw = Callable[..., tuple[Tensor, Tensor]]
NAMES = [f"class {k}" for k in range(5)]


def test_class_scores_are_those_of_scikit_learn(draw: Draw) -> None:
    logits_MNK, labels_N = draw(2, 400, 5)
    found = analyse_logits(LabelledLogits(logits_MNK, labels_N), NAMES)
    predicted_N = logits_MNK.mean(0).argmax(1)
    assert [s.top1 for s in found.classes] == pytest.approx(recall_score(labels_N, predicted_N, average=None))
    assert [s.precision for s in found.classes] == pytest.approx(precision_score(labels_N, predicted_N, average=None))
    members = recall_score(labels_N, logits_MNK[1].argmax(1), average=None)
    assert [s.members[1] for s in found.classes] == pytest.approx(members)
    assert sum(s.nll * s.samples for s in found.classes) / 400 == pytest.approx(
        evaluate(logits_MNK, labels_N).ensemble.nll
    )
    assert found.matrix == confusion_matrix(labels_N, predicted_N).tolist()


def test_confused_pairs_are_the_largest_outside_the_diagonal(draw: Draw) -> None:
    logits_MNK, labels_N = draw(2, 400, 5)
    found = analyse_logits(LabelledLogits(logits_MNK, labels_N), NAMES)
    pairs = {(i, j): found.matrix[i][j] for i in range(5) for j in range(5) if i != j}
    assert [each.images for each in found.confused] == sorted(pairs.values(), reverse=True)[: len(found.confused)]
    first = found.confused[0]
    assert pairs[NAMES.index(first.true), NAMES.index(first.predicted)] == first.images
    assert first.share == pytest.approx(first.images / sum(found.matrix[NAMES.index(first.true)]))


def test_reliability_after_temperature_uses_the_temperatures_of_evaluate(draw: Draw) -> None:
    logits_MNK, labels_N = draw(3, 300, 5)
    found = analyse_logits(LabelledLogits(logits_MNK.float(), labels_N), NAMES)
    expected = evaluate(logits_MNK.float(), labels_N).ensemble
    assert found.temperatures == pytest.approx(expected.temperatures)
    gap = (found.before.samples * (found.before.confidence - found.before.accuracy).abs()).sum() / 300
    assert gap.item() == pytest.approx(expected.ece)


def test_one_network_has_no_disagreements_and_no_names_are_needed(draw: Draw) -> None:
    logits_MNK, labels_N = draw(1, 50, 5)
    found = analyse_logits(LabelledLogits(logits_MNK, labels_N), [])
    assert found.disagreements == []
    assert list(found.risk) == ["network"]
    assert found.classes[0].name == "class 0"


def test_a_class_without_images_is_left_out() -> None:
    logits_MNK = torch.eye(4).repeat(1, 2, 1)[:, :7]
    found = analyse_logits(LabelledLogits(logits_MNK, torch.tensor([0, 1, 2, 0, 0, 1, 2])), NAMES)
    assert [each.name for each in found.classes] == NAMES[:3]


@pytest.mark.parametrize(("right", "count"), [(0, 1), (1, 1), (3, 7), (80, 100)])
def test_interval_is_that_of_wilson(right: int, count: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(right, count).proportion_ci(0.95, method="wilson")
    assert interval(right, count) == pytest.approx((expected.low, expected.high), abs=1e-6)
