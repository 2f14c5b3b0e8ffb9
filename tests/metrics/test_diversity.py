"""Each measure against a plain loop over pairs and samples, against an independent library, and where it is 0/0."""

import math

import numpy as np
import pytest
import sklearn.metrics
import torch

from mixmo.metrics.diversity import DIVERSITY, agreement, error_correlation, kl, pair_mean, q_statistic, ratio_error


def as_logits(answers, classes):
    return torch.nn.functional.one_hot(torch.tensor(answers), classes).double()


def counts(a, b, labels):
    """Both right, only a, only b, neither."""
    table = [0, 0, 0, 0]
    for row_a, row_b, y in zip(a, b, labels, strict=True):
        right_a, right_b = row_a.index(max(row_a)) == y, row_b.index(max(row_b)) == y
        table[0 if right_a and right_b else 1 if right_a else 2 if right_b else 3] += 1
    return table


def loop_ratio_error(a, b, labels):
    _, only_a, only_b, neither = counts(a, b, labels)
    return (only_a + only_b) / neither if neither else 2 * (only_a + only_b)


def loop_q(a, b, labels):
    both, only_a, only_b, neither = counts(a, b, labels)
    denominator = both * neither + only_a * only_b
    return (both * neither - only_a * only_b) / denominator if denominator else 0.0


def loop_correlation(a, b, labels):
    errors = [[row.index(max(row)) != y for row, y in zip(rows, labels, strict=True)] for rows in (a, b)]
    mean = [sum(e) / len(e) for e in errors]
    covariance = sum((x - mean[0]) * (y - mean[1]) for x, y in zip(*errors, strict=True))
    variance = [sum((x - m) ** 2 for x in e) for e, m in zip(errors, mean, strict=True)]
    return covariance / math.sqrt(variance[0] * variance[1]) if variance[0] and variance[1] else 0.0


def loop_agreement(a, b, labels):
    return sum(x.index(max(x)) == y.index(max(y)) for x, y in zip(a, b, strict=True)) / len(labels)


def loop_kl(a, b, labels):
    total = 0.0
    for x, y in zip(a, b, strict=True):
        p, q = ([math.exp(z) / sum(math.exp(w) for w in row) for z in row] for row in (x, y))
        total += sum(s * math.log(s / t) for s, t in zip(p, q, strict=True))
    return total / len(labels)


LOOPS = {
    "ratio_error": loop_ratio_error,
    "agreement": loop_agreement,
    "disagreement": lambda a, b, labels: 1 - loop_agreement(a, b, labels),
    "q_statistic": loop_q,
    "error_correlation": loop_correlation,
    "kl": loop_kl,
}


@pytest.mark.parametrize(("predictors", "samples", "classes"), [(2, 150, 4), (5, 80, 10), (3, 4, 2), (1, 30, 3)])
@pytest.mark.parametrize("name", list(DIVERSITY))
def test_equals_a_loop_over_pairs_and_samples(name, predictors, samples, classes, draw):
    logits, labels = draw(predictors, samples, classes)
    rows = logits.tolist()
    expected = [[LOOPS[name](a, b, labels.tolist()) for b in rows] for a in rows]
    np.testing.assert_allclose(DIVERSITY[name](logits, labels).numpy(), expected, rtol=1e-10, atol=1e-14)


def test_equals_scikit_learn_numpy_and_torch(draw):
    logits, labels = draw(2, 400, 6)
    answers = logits.argmax(2).numpy()
    errors = answers != labels.numpy()
    assert agreement(logits, labels)[0, 1].item() == pytest.approx(sklearn.metrics.accuracy_score(*answers))
    assert error_correlation(logits, labels)[0, 1].item() == pytest.approx(np.corrcoef(errors)[0, 1])
    assert error_correlation(logits, labels)[0, 1].item() == pytest.approx(sklearn.metrics.matthews_corrcoef(*errors))
    log_p = logits.log_softmax(2)
    expected = torch.nn.functional.kl_div(log_p[1], log_p[0], reduction="batchmean", log_target=True)
    assert kl(logits, labels)[0, 1].item() == pytest.approx(expected.item())


def test_measures_equal_a_worked_example():
    labels = torch.zeros(10, dtype=torch.int64)
    a = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]  # wrong on 0 to 3
    b = [1, 2, 0, 0, 1, 0, 0, 0, 0, 0]  # wrong on 0, 1 and 4; on 1 with another answer than a
    logits = as_logits([a, b], 3)
    assert ratio_error(logits, labels)[0, 1].item() == 3 / 2
    assert agreement(logits, labels)[0, 1].item() == 6 / 10
    assert q_statistic(logits, labels)[0, 1].item() == (5 * 2 - 1 * 2) / (5 * 2 + 1 * 2)


def test_ratio_error_without_simultaneous_errors_is_twice_the_different_ones():
    labels = torch.zeros(6, dtype=torch.int64)
    logits = as_logits([[1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]], 2)
    assert ratio_error(logits, labels).tolist() == [[0, 6], [6, 0]]


def test_pair_mean_leaves_the_diagonal_out_and_takes_both_orders():
    matrix = torch.tensor([[100.0, 1.0, 2.0], [3.0, 100.0, 4.0], [5.0, 6.0, 100.0]])
    assert pair_mean(matrix).item() == 3.5


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        # no error at all, by anyone
        ([[0, 0, 0], [0, 0, 0]], {"ratio_error": 0, "q_statistic": 0, "error_correlation": 0, "agreement": 1}),
        # only one of the two errs
        ([[0, 0, 0], [1, 0, 1]], {"ratio_error": 4, "q_statistic": 0, "error_correlation": 0, "agreement": 1 / 3}),
        # all wrong, with different answers
        ([[1, 1, 1], [2, 2, 2]], {"ratio_error": 0, "q_statistic": 0, "error_correlation": 0, "agreement": 0}),
        # each errs where the other does not
        ([[1, 1, 0], [0, 0, 1]], {"ratio_error": 6, "q_statistic": -1, "error_correlation": -1, "agreement": 0}),
    ],
)
def test_degenerate_errors_have_documented_values(answers, expected):
    labels = torch.zeros(3, dtype=torch.int64)
    for name, value in expected.items():
        got = DIVERSITY[name](as_logits(answers, 3), labels)[0, 1].item()
        assert got == pytest.approx(value), name


def test_kl_is_never_negative(draw):
    logits, labels = draw(1, 50, 10)
    noise = torch.randn(20, 50, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert (kl(logits + 1e-12 * noise, labels) >= 0).all()


def test_kl_of_certain_predictors_is_finite_and_of_equal_ones_zero():
    logits = torch.tensor([[[1e6, 0.0]], [[0.0, 1e6]], [[1e6, 0.0]]])
    matrix = kl(logits, torch.tensor([0]))
    assert matrix[0, 1].item() == 1e6
    assert matrix[0, 2].item() == 0
