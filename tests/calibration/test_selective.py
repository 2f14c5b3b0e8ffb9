"""The threshold of selective prediction against plain loops and scipy, and its guarantee."""

import math

import pytest
import torch
from scipy.stats import beta

from mixmo.calibration.selective import binomial_limit, fewest_for_risk, fit_selective


@pytest.mark.parametrize(("errors", "samples"), [(0, 1), (0, 100), (3, 50), (49, 50), (700, 10_000)])
@pytest.mark.parametrize("delta", [0.5, 0.05, 0.001])
def test_the_binomial_limit_is_clopper_and_pearson(errors, samples, delta):
    assert binomial_limit(errors, samples, delta) == pytest.approx(beta.ppf(1 - delta, errors + 1, samples - errors))


def test_the_binomial_limit_of_only_errors_is_one():
    assert binomial_limit(7, 7, 0.05) == 1


def draws(samples: int, seed: int, classes: int = 5):
    """Logits and labels: right as often as they say."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.rand(samples, 1, generator=generator) * torch.randn(samples, classes, generator=generator)
    return logits.double(), torch.multinomial(logits.double().softmax(1), 1, generator=generator)[:, 0]


def test_coverage_and_bound_equal_a_loop():
    logits, labels = draws(3_000, 0)
    found = fit_selective(logits, labels, risk=0.1, delta=0.05)
    answered = errors = 0
    for row, label in zip(logits.softmax(1).tolist(), labels.tolist(), strict=True):
        if max(row) > found.threshold:
            answered += 1
            errors += row.index(max(row)) != label
    assert found.coverage == pytest.approx(answered / 3_000)
    steps = math.ceil(math.log2(3_000))
    assert found.bound == pytest.approx(beta.ppf(1 - 0.05 / steps, errors + 1, answered - errors))
    assert found.bound <= found.risk == 0.1
    assert found.delta == 0.05
    assert torch.equal(found.abstain(logits), logits.softmax(1).amax(1) <= found.threshold)
    assert 0.1 < found.coverage < 0.9
    # And it answers nearly as many as could be: a twentieth more would break the promise.
    order = logits.softmax(1).amax(1).argsort(descending=True)[: answered + 150]
    more = int((logits.argmax(1) != labels)[order].sum())
    assert beta.ppf(1 - 0.05 / steps, more + 1, len(order) - more) > 0.1


def test_the_risk_is_kept_on_new_samples():
    """In at least 1 - delta of 40 held-out sets; and the largest share answered is not given away."""
    new, truth = draws(20_000, 999)
    kept = coverage = 0.0
    for seed in range(40):
        found = fit_selective(*draws(2_000, seed), risk=0.1, delta=0.05)
        given = ~found.abstain(new)
        risk = (new.argmax(1) != truth)[given].double().mean().item()
        kept += risk <= 0.1
        coverage += given.double().mean().item() / 40
    assert kept >= 38
    assert coverage > 0.15


def test_a_good_network_never_abstains():
    labels = torch.arange(1_000) % 4
    logits = 5 * torch.nn.functional.one_hot(labels, 4) + torch.rand(1_000, 4, generator=torch.Generator())
    found = fit_selective(logits, labels, risk=0.05)
    assert (found.threshold, found.coverage) == (0, 1)
    assert not found.abstain(logits).any()


def test_always_abstains_where_nothing_can_be_guaranteed():
    logits, labels = draws(200, 1)
    found = fit_selective(logits, (labels + 1) % 5, risk=0.01)
    assert (found.threshold, found.coverage, found.bound) == (1, 0, 1)
    assert found.abstain(1e6 * logits).all()


def test_equally_confident_samples_are_treated_alike():
    logits = torch.tensor([[0.0, 2.0], [2.0, 0.0]]).repeat(200, 1)
    found = fit_selective(logits, torch.tensor([1, 0]).repeat(200), risk=0.05)
    assert len(set(found.abstain(logits).tolist())) == 1


def test_the_fewest_held_out_images_are_exact():
    """With as many, a network without errors predicts; with one less it abstains from every image."""
    for risk in (0.05, 0.2):
        for samples, coverage in ((fewest_for_risk(risk, 0.05), 1), (fewest_for_risk(risk, 0.05) - 1, 0)):
            logits = torch.linspace(9, 1, samples)[:, None] * torch.tensor([[1.0, 0.0]])
            found = fit_selective(logits, torch.zeros(samples, dtype=torch.long), risk, 0.05)
            assert found.coverage == coverage
