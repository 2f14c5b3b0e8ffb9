"""Detectors against loops and scipy; areas against scikit-learn, with as many ties as can be."""

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch

from mixmo.metrics.ood import DETECTORS, aupr, auroc, disagreement, energy, entropy, fpr95, max_probability
from mixmo.metrics.ood import mutual_information as mi


def loop(name, members):
    """The score of one sample from its members' logits, an (M, K) array."""
    mean = members.mean(0)
    p = [np.exp(z - scipy.special.logsumexp(z)) for z in members]
    q = np.exp(mean - scipy.special.logsumexp(mean))
    pairs = [(i, j) for i in range(len(members)) for j in range(i)]
    return {
        "max_probability": -max(q),
        "entropy": scipy.stats.entropy(q),
        "energy": -np.log(np.exp(mean).sum()),
        "mutual_information": scipy.stats.entropy(sum(p) / len(p)) - sum(map(scipy.stats.entropy, p)) / len(p),
        "disagreement": sum(p[i].argmax() != p[j].argmax() for i, j in pairs) / max(1, len(pairs)),
    }[name]


@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("name", list(DETECTORS))
def test_detectors_equal_a_loop(name, members, draw):
    logits, _ = draw(members, 40, 6)
    expected = [loop(name, logits[:, n].numpy()) for n in range(40)]
    np.testing.assert_allclose(DETECTORS[name](logits).numpy(), expected, atol=1e-12)


def test_scores_are_higher_for_uncertain_predictions():
    certain = torch.tensor([9.0, 0.0, 0.0])
    unsure = torch.tensor([0.1, 0.0, 0.0])
    logits = torch.stack([torch.stack([certain, unsure]), torch.stack([certain, unsure])])
    for detector in (max_probability, entropy, energy):
        assert detector(logits)[1] > detector(logits)[0]


def test_disagreement_is_distinguished_from_uncertain_members():
    contradict = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    hesitate = torch.zeros(2, 2)
    logits = torch.stack([contradict, hesitate], 1)
    assert entropy(logits)[0] == entropy(logits)[1]  # their means are the same
    assert mi(logits)[0] > 0.6
    assert mi(logits)[1] == 0
    assert disagreement(logits).tolist() == [1, 0]


def test_equal_members_have_no_mutual_information(draw):
    logits, _ = draw(1, 500, 10)
    information = mi(logits.expand(3, -1, -1))
    assert (information >= 0).all()
    assert (information < 1e-14).all()
    assert (mi(logits) == 0).all()  # of one member exactly: what rounding left would be ranked


@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
@pytest.mark.parametrize(("inside", "outside"), [(1, 1), (19, 7), (20, 40), (333, 500)])
def test_areas_equal_scikit_learn_with_ties(inside, outside, levels):
    generator = np.random.default_rng(levels + inside)
    a = generator.integers(levels, size=inside) / levels
    b = generator.integers(levels, size=outside) / levels + 0.2 * generator.integers(2, size=outside)
    truth, scores = np.r_[np.zeros(inside), np.ones(outside)], np.r_[a, b]
    got = [f(torch.tensor(a), torch.tensor(b)).item() for f in (auroc, aupr, fpr95)]
    passes, kept, _ = sklearn.metrics.roc_curve(1 - truth, -scores, drop_intermediate=False)
    assert got[0] == pytest.approx(sklearn.metrics.roc_auc_score(truth, scores), abs=1e-12)
    assert got[1] == pytest.approx(sklearn.metrics.average_precision_score(truth, scores), abs=1e-12)
    assert got[2] == pytest.approx(passes[kept >= 0.95 - 1e-12][0], abs=1e-12)


def test_areas_equal_a_loop():
    a, b = [0.1, 0.4, 0.4, 0.8], [0.4, 0.9, 0.3]
    wins = sum((y > x) + 0.5 * (x == y) for x in a for y in b)
    precisions = [sum(o >= t for o in b) / (sum(o >= t for o in b) + sum(i >= t for i in a)) for t in b]
    assert auroc(torch.tensor(a), torch.tensor(b)).item() == wins / 12
    assert aupr(torch.tensor(a), torch.tensor(b)).item() == pytest.approx(sum(precisions) / 3)


def test_fpr95_accepts_exactly_nineteen_of_twenty():
    inside = torch.arange(20)  # the threshold is 18
    assert fpr95(inside, torch.tensor([18.0, 18.5, 17.0, 30.0])).item() == 0.5
    more = torch.arange(21)  # 95% of 21 is 19.95: twenty must pass, so the threshold is 19
    assert fpr95(more, torch.tensor([18.0, 18.5, 17.0, 30.0])).item() == 0.75


def test_exchanged_roles_equal_scikit_learn(draw):
    generator = np.random.default_rng(0)
    a, b = torch.tensor(generator.normal(size=50)), torch.tensor(generator.normal(1, size=70))
    truth, scores = np.r_[np.ones(50), np.zeros(70)], np.r_[-a, -b]
    assert aupr(-b, -a).item() == pytest.approx(sklearn.metrics.average_precision_score(truth, scores))
    flagged, found, _ = sklearn.metrics.roc_curve(1 - truth, -scores, drop_intermediate=False)
    assert fpr95(-b, -a).item() == pytest.approx(flagged[found >= 0.95][0])


def test_infinite_scores_are_ranked():
    assert auroc(torch.tensor([-torch.inf, 0.0]), torch.tensor([torch.inf, 0.0])).item() == 0.875
