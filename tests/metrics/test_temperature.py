"""The temperature against scipy and closed forms, where no minimum exists, and the exchange between the halves."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar

from mixmo.metrics.scores import ece, nll
from mixmo.metrics.temperature import T_MAX, T_MIN, Calibrated, calibrate_halves, fit_temperature, random_halves


def two_class(margins, right):
    """Logits (0, margin), of which the second class is the label if right."""
    margins = torch.tensor(margins, dtype=torch.float64)
    return torch.stack([torch.zeros_like(margins), margins], 1), torch.tensor(right).long()


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize(("samples", "classes"), [(50, 2), (400, 10), (100, 100)])
def test_equals_scipy(samples, classes, scale, draw):
    (logits,), labels = draw(1, samples, classes, seed=3)
    logits = scale * logits
    found = minimize_scalar(
        lambda log_t: nll(logits / math.exp(log_t), labels).item(),
        bounds=(math.log(T_MIN), math.log(T_MAX)),
        method="bounded",
        options={"xatol": 1e-10},
    )
    t = fit_temperature(logits, labels)
    assert t == pytest.approx(math.exp(found.x), rel=1e-6)
    assert nll(logits / t, labels).item() <= found.fun + 1e-14


def test_is_a_root_of_the_slope_to_machine_precision(draw):
    (logits,), labels = draw(1, 500, 20)
    beta = torch.tensor(1 / fit_temperature(logits, labels), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(beta * logits, labels), beta)
    assert abs(slope.item()) < 1e-13


@pytest.mark.parametrize("scale", [0.1, 7.0, 50.0])
def test_scales_with_the_logits(scale, draw):
    (logits,), labels = draw(1, 200, 10)
    assert fit_temperature(scale * logits, labels) == pytest.approx(scale * fit_temperature(logits, labels), rel=1e-10)


@pytest.mark.parametrize("wrong", [1, 10, 400])
def test_equals_the_closed_form_of_two_classes(wrong):
    logits, labels = two_class([3.0] * 1000, [0] * wrong + [1] * (1000 - wrong))
    assert fit_temperature(logits, labels) == pytest.approx(3.0 / math.log((1000 - wrong) / wrong), rel=1e-9)


@pytest.mark.parametrize(("margin", "wrong", "samples"), [(60.0, 3, 100), (800.0, 1, 4000)])
def test_converges_where_newton_alone_diverges(margin, wrong, samples):
    # At T = 1 these margins saturate: the curvature is about exp(-60), or exactly 0, while the slope is not small.
    logits, labels = two_class([margin] * samples, [0] * wrong + [1] * (samples - wrong))
    assert fit_temperature(logits, labels) == pytest.approx(margin / math.log((samples - wrong) / wrong), rel=1e-9)


def test_needs_few_passes_over_the_logits(draw, monkeypatch):
    """Newton's steps double the digits; halving the bracket alone would take more than forty."""
    (logits,), labels = draw(1, 500, 20)
    passes, softmax = [], torch.Tensor.softmax
    monkeypatch.setattr(torch.Tensor, "softmax", lambda *args: passes.append(1) or softmax(*args))
    fit_temperature(logits, labels)
    assert 0 < len(passes) < 15


def test_half_precision_logits_are_fitted_in_float64(draw):
    (logits,), labels = draw(1, 200, 10)
    stored = logits.to(torch.bfloat16)
    assert fit_temperature(stored, labels) == fit_temperature(stored.double(), labels)


def test_converges_where_the_curvature_underflows():
    logits, labels = two_class([5.0] * 50 + [3000.0] * 50, [0] * 5 + [1] * 95)
    t = fit_temperature(logits, labels)
    assert T_MIN < t < T_MAX
    assert all(nll(logits / t, labels) < nll(logits / (t * change), labels) for change in (0.99, 1.01))


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3, 1e6])
def test_separable_data_give_temperature_one(scale):
    logits, labels = two_class([scale, 2 * scale, -scale], [1, 1, 0])
    assert fit_temperature(logits, labels) == 1.0


def test_logits_worse_than_chance_give_the_highest_temperature():
    logits, labels = two_class([1.0, 2.0, 3.0], [0, 0, 0])
    assert fit_temperature(logits, labels) == T_MAX == 100


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e5])
def test_constant_logits_give_temperature_one(constant):
    assert fit_temperature(torch.full((10, 6), constant), torch.arange(10) % 6) == 1.0


@pytest.mark.parametrize("samples", [2, 7, 100])
def test_random_halves_are_a_seeded_partition(samples):
    first, second = random_halves(samples, seed=1)
    assert sorted(first.tolist() + second.tolist()) == list(range(samples))
    assert (len(first), len(second)) == (samples // 2, samples - samples // 2)
    again, _ = random_halves(samples, seed=1)
    assert torch.equal(first, again)
    if samples == 100:
        assert not torch.equal(first, random_halves(samples, seed=2)[0])


def test_each_half_is_scaled_by_the_temperature_of_the_other(draw):
    (logits,), labels = draw(1, 101, 6)
    first, second = random_halves(101, seed=5)
    result = calibrate_halves(logits, labels, (first, second))
    assert result.temperatures == (
        fit_temperature(logits[first], labels[first]),
        fit_temperature(logits[second], labels[second]),
    )
    assert result.temperatures[0] != result.temperatures[1]
    torch.testing.assert_close(result.logits[first], logits[first] / result.temperatures[1])
    torch.testing.assert_close(result.logits[second], logits[second] / result.temperatures[0])


def test_halves_have_equal_weight_whatever_their_sizes():
    logits, labels = two_class([1.0, 2.0, 3.0, 4.0], [1, 1, 0, 1])
    halves = (torch.tensor([2]), torch.tensor([0, 1, 3]))
    unequal = Calibrated(logits, (1.0, 1.0), halves)
    expected = (nll(logits[2:3], labels[2:3]) + nll(logits[halves[1]], labels[halves[1]])) / 2
    assert unequal.score(nll, labels).item() == pytest.approx(expected.item())
    assert unequal.score(nll, labels).item() != pytest.approx(nll(logits, labels).item())


def test_calibration_keeps_the_predictions_and_lowers_the_nll_of_an_overconfident_network(draw):
    (logits,), labels = draw(1, 1000, 10)
    result = calibrate_halves(5 * logits, labels, random_halves(1000))
    assert torch.equal(result.logits.argmax(1), logits.argmax(1))
    assert result.score(nll, labels) < 0.7 * nll(5 * logits, labels)
    assert result.score(ece, labels) < 0.5 * ece(5 * logits, labels)
