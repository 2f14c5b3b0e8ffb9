"""Each score against a plain loop, against an independent library, and where its definition has an edge."""

import math

import pytest
import sklearn.metrics
import torch
import torchmetrics.functional.classification as tm

from mixmo.metrics.scores import METRICS, auc, brier, ece, nll, tace, top1, top5

SHAPES = [(1, 2), (10, 3), (20, 2), (40, 3), (200, 5), (61, 40)]  # tace: bins of 0, 0, 1, 2, 13 samples, and 0 to 4


def softmax(row):
    top = max(row)
    weights = [math.exp(z - top) for z in row]
    return [w / sum(weights) for w in weights]


def loop_top(rows, labels, k):
    right = 0
    for row, y in zip(rows, labels, strict=True):
        ranking = sorted(range(len(row)), key=lambda c: (-row[c], c))
        right += y in ranking[:k]
    return right / len(rows)


def loop_ece(rows, labels):
    pairs = [(max(softmax(row)), row.index(max(row)) == y) for row, y in zip(rows, labels, strict=True)]
    total = 0.0
    for b in range(15):
        inside = [(c, right) for c, right in pairs if b / 15 < c <= (b + 1) / 15]
        if inside:
            confidence = sum(c for c, _ in inside) / len(inside)
            accuracy = sum(right for _, right in inside) / len(inside)
            total += len(inside) / len(rows) * abs(confidence - accuracy)
    return total


def loop_tace(rows, labels):
    probabilities = [softmax(row) for row in rows]
    total = 0.0
    for k in range(len(rows[0])):
        kept = sorted((p[k], y == k) for p, y in zip(probabilities, labels, strict=True) if p[k] > 1e-3)
        size = len(kept) // 15
        bins = [kept[b * size : (b + 1) * size] for b in range(14)] + [kept[14 * size :]]
        for members in bins:
            if members:
                confidence = sum(p for p, _ in members) / len(members)
                share = sum(hit for _, hit in members) / len(members)
                total += abs(confidence - share) * len(members) / (len(rows) * len(rows[0]))
    return total


def loop_auc(rows, labels):
    pairs = [(max(softmax(row)), row.index(max(row)) == y) for row, y in zip(rows, labels, strict=True)]
    right = [c for c, ok in pairs if ok]
    wrong = [c for c, ok in pairs if not ok]
    if not right or not wrong:
        return 0.5
    return sum((r > w) + 0.5 * (r == w) for r in right for w in wrong) / (len(right) * len(wrong))


def loop_brier(rows, labels):
    total = 0.0
    for row, y in zip(rows, labels, strict=True):
        total += sum((p - (k == y)) ** 2 for k, p in enumerate(softmax(row)))
    return total / len(rows)


LOOPS = {
    "top1": lambda rows, labels: loop_top(rows, labels, 1),
    "top5": lambda rows, labels: loop_top(rows, labels, min(5, len(rows[0]))),
    "nll": lambda rows, labels: (
        sum(-math.log(softmax(row)[y]) for row, y in zip(rows, labels, strict=True)) / len(rows)
    ),
    "brier": loop_brier,
    "ece": loop_ece,
    "tace": loop_tace,
    "auc": loop_auc,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", list(METRICS))
def test_equals_a_loop(name, shape, draw):
    logits, labels = draw(1, *shape)
    assert METRICS[name](logits[0], labels).item() == pytest.approx(LOOPS[name](logits[0].tolist(), labels.tolist()))


@pytest.mark.parametrize("name", ["top1", "top5"])
def test_equals_a_loop_with_many_equal_logits(name, draw):
    logits, labels = draw(1, 300, 12)
    coarse = logits[0].div(2).round()
    assert METRICS[name](coarse, labels).item() == pytest.approx(LOOPS[name](coarse.tolist(), labels.tolist()))


def test_auc_counts_ties_for_half(draw):
    logits, labels = draw(1, 300, 12)
    repeated = logits[0, :20].repeat(15, 1)
    assert auc(repeated, labels).item() == pytest.approx(loop_auc(repeated.tolist(), labels.tolist()))


def test_equals_scikit_learn(draw):
    (logits,), labels = draw(1, 500, 10)
    p, y, classes = logits.softmax(1), labels.numpy(), list(range(10))
    right = (logits.argmax(1) == labels).numpy()
    assert top1(logits, labels).item() == pytest.approx(sklearn.metrics.accuracy_score(y, logits.argmax(1).numpy()))
    assert top5(logits, labels).item() == pytest.approx(sklearn.metrics.top_k_accuracy_score(y, p.numpy(), k=5))
    assert nll(logits, labels).item() == pytest.approx(sklearn.metrics.log_loss(y, p.numpy(), labels=classes))
    assert auc(logits, labels).item() == pytest.approx(sklearn.metrics.roc_auc_score(right, p.max(1).values.numpy()))
    expected = sklearn.metrics.brier_score_loss(y, p.numpy(), labels=classes, scale_by_half=False)
    assert brier(logits, labels).item() == pytest.approx(expected)


def test_equals_torchmetrics(draw):
    (logits,), labels = draw(1, 2000, 10)
    p = logits.softmax(1)
    assert ece(logits, labels).item() == pytest.approx(
        tm.multiclass_calibration_error(p, labels, num_classes=10, n_bins=15, norm="l1").item(), abs=1e-6
    )
    assert top5(logits, labels).item() == pytest.approx(
        tm.multiclass_accuracy(p, labels, num_classes=10, top_k=5, average="micro").item(), abs=1e-6
    )


def test_a_constant_predictor_is_correct_for_the_first_classes_only():
    labels = torch.arange(20)
    assert top1(torch.zeros(20, 20), labels).item() == 1 / 20
    assert top5(torch.zeros(20, 20), labels).item() == 5 / 20


def test_ece_bins_are_open_below_and_closed_above():
    # Confidences 1/3 (an edge: 5/15) and 0.36: apart, their gaps add up; in one bin they would partly cancel.
    logits = torch.stack([torch.zeros(3), torch.tensor([0.36, 0.32, 0.32]).log()]).double()
    labels = torch.tensor([0, 1])
    apart = (abs(1 / 3 - 1) + 0.36) / 2
    assert ece(logits, labels).item() == pytest.approx(apart, abs=1e-7)
    with_certain = torch.tensor([[0.0, 1000.0]])  # confidence 1.0 is in the last bin, not beyond it
    assert ece(with_certain, torch.tensor([1])).item() == 0
    assert ece(with_certain, torch.tensor([0])).item() == 1


def test_tace_ignores_small_probabilities():
    logits = torch.tensor([[0.0, -7.0]], dtype=torch.float64).expand(30, 2)  # p_1 is 0.0009
    labels = torch.ones(30, dtype=torch.int64)
    certain = torch.sigmoid(torch.tensor(7.0, dtype=torch.float64)).item()
    assert tace(logits, labels).item() == pytest.approx(certain / 2)  # class 0 alone counts


@pytest.mark.parametrize("label", [0, 1])
def test_auc_without_errors_or_without_correct_predictions_is_a_half(label):
    logits = torch.tensor([[3.0, 1.0], [2.0, 1.0]])
    assert auc(logits, torch.full((2,), label)).item() == 0.5


def test_half_precision_logits_are_scored_in_float64(draw):
    (logits,), labels = draw(1, 300, 10)
    stored = logits.to(torch.bfloat16)
    assert nll(stored, labels).item() == nll(stored.double(), labels).item()
