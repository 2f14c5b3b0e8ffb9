"""Conformal sets against plain loops, and their coverage."""

import math

import pytest
import torch
from torch import Tensor

from mixmo.calibration.conformal import CONFORMAL, LAMBDAS, Conformal, fit_conformal, tune_raps

METHODS = list(CONFORMAL)
every = pytest.mark.parametrize("method", METHODS)
both = pytest.mark.parametrize("randomised", [False, True])


def slow_score(p: list[float], label: int, u: float, method: str, lam: float, k_reg: int) -> float:
    """One score, by walking down the classes."""
    if method == "lac":
        return 1 - p[label]
    total = 0.0
    for rank, k in enumerate(sorted(range(len(p)), key=lambda k: (-p[k], k)), start=1):
        penalty = lam * max(0, rank - k_reg) if method == "raps" else 0.0
        if k == label:
            return total + u * p[k] + penalty
        total += p[k]
    raise AssertionError


def calibrated(samples: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits whose softmax is the truth: labels are drawn from it."""
    generator = torch.Generator().manual_seed(seed)
    spread = 0.5 + 3 * torch.rand(samples, 1, generator=generator, dtype=torch.float64)
    logits = spread * torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


@both
@every
def test_sets_equal_a_loop(draw, method, randomised):
    logits_MNK, labels = draw(2, 60, 7, seed=3)
    logits, new = logits_MNK
    u = torch.rand(2, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    fitted = fit_conformal(logits, labels, 0.8, method, randomised=randomised, lam=0.1, k_reg=2, u_N=u[0])
    sets = fitted.sets(new, u[1])

    weight = u if randomised else torch.ones_like(u)
    p, q = logits.softmax(1).tolist(), new.softmax(1).tolist()
    own = sorted(slow_score(p[n], int(labels[n]), float(weight[0, n]), method, 0.1, 2) for n in range(60))
    quantile = own[math.ceil(61 * 0.8) - 1]
    assert fitted.quantile == pytest.approx(quantile, abs=1e-12)
    expected = [
        [slow_score(q[n], k, float(weight[1, n]), method, 0.1, 2) <= quantile + 1e-12 for k in range(7)]
        for n in range(60)
    ]
    assert sets.tolist() == expected
    assert 0 < sets.double().mean() < 1


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
@both
@every
def test_coverage_is_the_target(method, randomised, level):
    """Within 1 % of nominal on 10,000 predictions, the quantile being of others: on average over three such trials.

    A single trial strays by 0.6 % (one standard deviation, at level 0.8), whatever the method.
    """
    torch.manual_seed(0)
    covered = []
    for seed in (10, 20, 30):
        logits, labels = calibrated(10_000, 10, seed)
        lam, k_reg = tune_raps(*calibrated(500, 10, seed + 2), level) if method == "raps" else (0.0, 0)
        fitted = fit_conformal(logits, labels, level, method, randomised=randomised, lam=lam, k_reg=k_reg)
        new, truth = calibrated(10_000, 10, seed + 1)
        covered.append(fitted.sets(new)[torch.arange(10_000), truth].double().mean().item())
    assert sum(covered) / 3 == pytest.approx(level, abs=0.01)
    assert covered == pytest.approx([level] * 3, abs=0.02)


@every
def test_coverage_of_an_overconfident_predictor(method):
    """Exchangeable samples are enough: the probabilities need not be right."""
    (logits, labels), (new, truth) = calibrated(10_000, 20, seed=4), calibrated(10_000, 20, seed=5)
    fitted = fit_conformal(4 * logits, labels, 0.9, method, randomised=True, lam=0.01, k_reg=3)
    covered = fitted.sets(4 * new)[torch.arange(10_000), truth].double().mean().item()
    assert covered == pytest.approx(0.9, abs=0.01)


def test_coverage_over_small_held_out_sets():
    """The finite-sample quantile: with 19 samples, exactly 0.9 on average; the plain quantile would give 0.85."""
    covered = []
    for seed in range(400):
        logits, labels = calibrated(219, 10, seed)
        sets = fit_conformal(logits[:19], labels[:19], 0.9).sets(logits[19:])
        covered.append(sets[torch.arange(200), labels[19:]].double().mean())
    assert torch.stack(covered).mean().item() == pytest.approx(0.9, abs=0.01)


def test_lac_has_the_smallest_sets_and_randomness_makes_them_smaller():
    logits, labels = calibrated(5_000, 20, seed=1)

    def size(method: str, randomised: bool) -> float:
        fitted = fit_conformal(logits, labels, 0.9, method, randomised=randomised)
        return fitted.sets(logits).sum(1).double().mean().item()

    assert size("lac", False) < size("aps", True) < size("aps", False)


def test_raps_without_penalty_is_aps(draw):
    (logits, _), _ = draw(2, 30, 6)
    assert torch.equal(Conformal("raps", 0.9, 0.0).scores(logits), Conformal("aps", 0.9, 0.0).scores(logits))
    labels = logits.argmin(1)
    assert fit_conformal(logits, labels, method="raps").quantile == fit_conformal(logits, labels, method="aps").quantile


def test_tuned_raps_has_smaller_sets_than_aps():
    """Probabilities with a long tail that is noise, as on ImageNet: this is what RAPS is for."""
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(4_000, 100, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((3 * logits).softmax(1), 1, generator=generator)[:, 0]
    lam, k_reg = tune_raps(logits[:1000], labels[:1000], 0.9)
    rank = (logits[:1000] > logits[:1000].gather(1, labels[:1000, None])).sum(1) + 1
    assert k_reg == sorted(rank.tolist())[math.ceil(1001 * 0.9) - 1]
    sets = {
        lam: fit_conformal(logits[:1000], labels[:1000], 0.9, "raps", lam=lam, k_reg=k_reg).sets(logits[:1000]).sum()
        for lam in LAMBDAS
    }
    assert sets[lam] == min(sets.values()) < max(sets.values())
    sizes = {
        method: fit_conformal(logits[1000:], labels[1000:], 0.9, method, lam=lam, k_reg=k_reg).sets(logits).sum(1)
        for method in ("aps", "raps")
    }
    assert sizes["raps"].double().mean() < 0.9 * sizes["aps"].double().mean()
    assert sizes["raps"].max() < sizes["aps"].max()


@both
@every
def test_scores_increase_with_the_rank(draw, method, randomised):
    (logits, _), _ = draw(2, 30, 6)
    order = logits.argsort(1, descending=True)
    sorted_scores = Conformal(method, 0.9, 0.0, randomised, 0.1, 2).scores(logits).gather(1, order)
    assert (sorted_scores.diff(dim=1) >= -1e-12).all()


@every
def test_the_order_of_the_classes_does_not_matter(draw, method):
    (logits, _), _ = draw(2, 30, 6)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    sets = Conformal(method, 0.9, 0.0, lam=0.1, k_reg=1)
    torch.testing.assert_close(sets.scores(logits[:, order]), sets.scores(logits)[:, order])


@every
def test_docstring_begins_with_one_line(method):
    line = CONFORMAL[method].__doc__.partition("\n")[0]
    assert 15 < len(line) < 120


def test_randomised_sets_follow_the_seed_of_torch(draw):
    (logits, new), labels = draw(2, 60, 7)
    fitted = fit_conformal(logits, labels, 0.8, "aps", randomised=True)
    drawn = [torch.manual_seed(seed) and fitted.sets(new) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
