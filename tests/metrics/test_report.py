"""The report equals the functions it is made of, for any number of members; its checks; its JSON."""

import json

import pytest
import torch

from mixmo.metrics import DIVERSITY, METRICS, Diversity, Scores, evaluate
from mixmo.metrics.diversity import pair_mean
from mixmo.metrics.scores import ece, nll
from mixmo.metrics.temperature import calibrate_halves, random_halves
from mixmo.utils.errors import UserError


def test_report_equals_the_single_functions(draw):
    logits, labels = draw(3, 120, 8)
    report = evaluate(logits, labels, seed=4)
    predictors = [(report.ensemble, logits.mean(0)), *zip(report.members, logits, strict=True)]
    assert len(predictors) == 4
    for scores, logits_NK in predictors:
        calibrated = calibrate_halves(logits_NK, labels, random_halves(120, seed=4))
        for name in METRICS:
            assert getattr(scores, name) == METRICS[name](logits_NK, labels).item()
        assert scores.nllc == calibrated.score(nll, labels).item()
        assert scores.ecec == calibrated.score(ece, labels).item()
        assert scores.temperatures == calibrated.temperatures
    for name in DIVERSITY:
        assert getattr(report.diversity, name) == pair_mean(DIVERSITY[name](logits, labels)).item()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_is_the_same_on_a_gpu(draw):
    logits, labels = draw(2, 120, 8)
    here, there = evaluate(logits, labels), evaluate(logits.cuda(), labels.cuda())
    assert there.ensemble.nllc == pytest.approx(here.ensemble.nllc, rel=1e-9)
    assert there.ensemble.temperatures == pytest.approx(here.ensemble.temperatures, rel=1e-9)


def test_every_registered_score_has_its_field():
    assert set(Scores._fields) == {*METRICS, "nllc", "ecec", "temperatures", "own"}
    assert set(Diversity._fields) == {*DIVERSITY, "own"}


def test_user_defined_scores_are_reported(draw, monkeypatch):
    for registry in (METRICS, DIVERSITY):
        monkeypatch.setattr(registry, "_things", dict(registry._things))
    logits, labels = draw(2, 50, 4)
    before = evaluate(logits, labels)
    assert before == evaluate(logits, labels, seed=0) != evaluate(logits, labels, seed=1)
    METRICS.add("worst")(lambda logits_NK, labels_N: nll(logits_NK[:1], labels_N[:1]))
    METRICS.add("images")(lambda logits_NK, labels_N: len(labels_N))  # any number is converted
    DIVERSITY.add("gap")(lambda logits_PNK, labels_N: (logits_PNK[:, None] - logits_PNK).abs().amax((2, 3)))
    report = evaluate(logits, labels)
    first = [nll(logits_NK[:1], labels[:1]).item() for logits_NK in (logits.mean(0), *logits)]
    assert [scores.own["worst"] for scores in (report.ensemble, *report.members)] == first
    plain, gap = report.to_dict(), (logits[0] - logits[1]).abs().max().item()
    assert before.ensemble.own == before.diversity.own == {}
    assert plain["ensemble"] == before.to_dict()["ensemble"] | {"worst": first[0], "images": 50}
    assert plain["diversity"] == before.to_dict()["diversity"] | {"gap": gap}


@pytest.mark.parametrize("name", ["nll", "nllc", "ecec", "temperatures", "own"])
def test_reserved_names_raise(name):
    with pytest.raises(UserError, match=name):
        METRICS.add(name)(nll)
    with pytest.raises(UserError, match="own"):
        DIVERSITY.add("own")(nll)


def test_one_member_is_its_own_ensemble_without_diversity(draw):
    report = evaluate(*draw(1, 60, 5))
    assert report.members == (report.ensemble,)
    assert report.diversity is None
    assert report.to_dict()["diversity"] is None


def test_several_networks_are_stacked(draw):
    (first, labels), (second, _) = draw(2, 80, 5, seed=1), draw(3, 80, 5, seed=1)
    report = evaluate(torch.cat([first, second]), labels)
    assert len(report.members) == 5
    assert report.members[:2] == evaluate(first, labels).members
    mean = (2 * first.mean(0) + 3 * second.mean(0)) / 5
    assert report.ensemble.nll == pytest.approx(nll(mean, labels).item(), rel=1e-12)


def test_halves_replace_the_seed(draw):
    logits, labels = draw(2, 90, 5)
    assert evaluate(logits, labels, seed=9) == evaluate(logits, labels, halves=random_halves(90, 9))
    assert evaluate(logits, labels, seed=9) != evaluate(logits, labels, seed=8)


@pytest.mark.parametrize("members", [1, 2])
def test_round_trip_through_json(members, draw):
    plain = evaluate(*draw(members, 50, 4)).to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert set(plain["ensemble"]) == set(Scores._fields) - {"own"}
    assert len(plain["members"]) == members


@pytest.mark.parametrize("labels", [torch.arange(6) % 3, torch.zeros(6, dtype=torch.int64)])
@pytest.mark.parametrize(
    "logits", [torch.zeros(2, 6, 3), 1e4 * torch.eye(3).repeat(2, 2, 1), torch.eye(3).repeat(2, 2, 1)]
)
def test_degenerate_predictors_have_finite_scores(logits, labels):
    json.dumps(evaluate(logits, labels).to_dict(), allow_nan=False)


@pytest.mark.parametrize("shape", [(10, 4), (2, 3, 10, 4), (0, 10, 4), (2, 10, 1)])
def test_logits_of_the_wrong_shape_raise(shape):
    with pytest.raises(UserError, match="shape"):
        evaluate(torch.zeros(shape), torch.zeros(10, dtype=torch.int64))


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_logits_that_are_not_finite_raise(value, draw):
    logits, labels = draw(2, 10, 4)
    logits[0, 3, 2] = value
    with pytest.raises(UserError, match="NaN"):
        evaluate(logits, labels)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda labels: labels[:-1], "shape"),
        (lambda labels: labels[:, None], "shape"),
        (lambda labels: labels.double(), "integer"),
        (lambda labels: labels + 4, "0 to 3"),
        (lambda labels: labels - 4, "0 to 3"),
        (lambda labels: labels.tolist(), "list"),
    ],
)
def test_labels_that_do_not_fit_raise(change, word, draw):
    logits, labels = draw(2, 10, 4)
    with pytest.raises(UserError, match=word):
        evaluate(logits, change(labels))


def test_labels_may_have_any_integer_type(draw):
    logits, labels = draw(2, 10, 4)
    assert evaluate(logits, labels.to(torch.uint8)) == evaluate(logits, labels)


def test_one_sample_raises():
    with pytest.raises(UserError, match="halves"):
        evaluate(torch.zeros(2, 1, 3), torch.tensor([0]))
