"""Every score that the authors' code gave for two heads of 2,000 samples and 100 classes, number by number.

Theirs were computed in float32, hence the tolerances; a temperature of theirs is LBFGS's, of `own/*` exact.
"""

import pytest
import torch

from mixmo.metrics import METRICS, evaluate
from mixmo.metrics.diversity import pair_mean, ratio_error
from mixmo.metrics.scores import nll
from mixmo.metrics.temperature import Calibrated, calibrate_halves, fit_temperature

# their name -> (ours, ours / theirs)
SAME = {
    "accuracy": ("top1", 1),
    "accuracytop5": ("top5", 1),
    "nll": ("nll", 1),
    "brier": ("brier", 100),  # theirs is divided by the number of classes
    "ece": ("ece", 1),
    "tace": ("tace", 1),
    "auc": ("auc", 1),
}
OF_MEMBERS = ["accuracy_0", "accuracy_1", "accuracy_mean", "diversity_ratioerrors"]


@pytest.fixture(scope="module")
def heads(reference):
    return torch.tensor(reference["metrics/head_logits"])


@pytest.fixture(scope="module")
def labels(reference):
    return torch.tensor(reference["metrics/labels"])


@pytest.fixture(scope="module")
def halves(reference):
    return torch.tensor(reference["metrics/val_idx"]), torch.tensor(reference["metrics/test_idx"])


@pytest.fixture(scope="module")
def theirs(reference, heads, halves):
    """The ensemble's logits, scaled by the authors' temperatures."""
    (val, test), logits = halves, heads.double().mean(0)
    temperatures = reference["metrics/M2/T_val"].item(), reference["metrics/M2/T_test"].item()
    scaled = logits.clone()
    scaled[test] /= temperatures[0]
    scaled[val] /= temperatures[1]
    return Calibrated(scaled, temperatures, halves)


@pytest.fixture(scope="module")
def report(heads, labels, halves):
    return evaluate(heads, labels, halves=halves)


def members(heads, labels):
    top1 = [METRICS["top1"](head, labels).item() for head in heads]
    return dict(zip(OF_MEMBERS, [*top1, sum(top1) / 2, pair_mean(ratio_error(heads, labels)).item()], strict=True))


def test_every_array_of_the_reference_is_compared(reference, heads):
    kinds = ("final", "calibrated_final")
    scores = {f"metrics/M2/{kind}/{name}" for kind in kinds for name in [*SAME, *OF_MEMBERS]}
    inputs = {"metrics/head_logits", "metrics/labels", "metrics/val_idx", "metrics/test_idx"}
    others = {"metrics/M2/logits", "metrics/M2/T_val", "metrics/M2/T_test"}
    exact = {"T_exact_val", "T_exact_test", "calibrated_nll_with_T_exact", "nll_if_probabilities_averaged"}
    stored = {key for key in reference if key.startswith(("metrics/", "own/"))}
    assert stored == scores | inputs | others | {f"own/M2/{name}" for name in exact}


def test_the_ensemble_is_the_mean_of_logits(reference, heads, labels):
    torch.testing.assert_close(heads.mean(0), torch.tensor(reference["metrics/M2/logits"]))
    of_probabilities = nll(heads.double().softmax(2).mean(0).log(), labels).item()
    assert of_probabilities == pytest.approx(reference["own/M2/nll_if_probabilities_averaged"].item(), rel=1e-10)


@pytest.mark.parametrize("name", SAME)
def test_scores_before_calibration_equal_the_authors(name, reference, report):
    ours, factor = SAME[name]
    expected = factor * reference[f"metrics/M2/final/{name}"].item()
    assert getattr(report.ensemble, ours) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", SAME)
def test_scores_after_calibration_equal_the_authors(name, reference, theirs, labels):
    ours, factor = SAME[name]
    expected = factor * reference[f"metrics/M2/calibrated_final/{name}"].item()
    assert theirs.score(METRICS[ours], labels).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", OF_MEMBERS)
def test_scores_of_members_equal_the_authors(name, reference, heads, labels, halves):
    whole = members(heads, labels)[name]
    by_half = sum(members(heads[:, half], labels[half])[name] for half in halves) / 2
    assert whole == pytest.approx(reference[f"metrics/M2/final/{name}"].item(), rel=1e-12)
    assert by_half == pytest.approx(reference[f"metrics/M2/calibrated_final/{name}"].item(), rel=1e-12)


@pytest.mark.parametrize("half", ["val", "test"])
def test_temperatures_equal_the_authors(half, reference, heads, labels):
    index = torch.tensor(reference[f"metrics/{half}_idx"])
    t = fit_temperature(heads.double().mean(0)[index], labels[index])
    assert t == pytest.approx(reference[f"own/M2/T_exact_{half}"].item(), rel=1e-7)
    assert t == pytest.approx(reference[f"metrics/M2/T_{half}"].item(), rel=3e-3)
    at_theirs = nll(heads.double().mean(0)[index] / reference[f"metrics/M2/T_{half}"].item(), labels[index])
    assert nll(heads.double().mean(0)[index] / t, labels[index]) < at_theirs


def test_calibrated_nll_equals_the_exact_one(reference, report, heads, labels, halves):
    expected = reference["own/M2/calibrated_nll_with_T_exact"].item()
    assert report.ensemble.nllc == pytest.approx(expected, rel=1e-8)
    result = calibrate_halves(heads.double().mean(0), labels, halves)
    assert result.score(nll, labels).item() == report.ensemble.nllc
