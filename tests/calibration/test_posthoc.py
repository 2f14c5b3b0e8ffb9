"""`calibrate` checks its arguments; a calibration survives JSON."""

import json
import math

import pytest

from mixmo import Calibration, UserError, calibrate


def test_round_trip_through_json(draw):
    fitted = calibrate(*draw(2, 60, 4), method="aps", randomised=True)
    assert Calibration.from_dict(json.loads(json.dumps(fitted.to_dict()))) == fitted
    assert (fitted.samples, fitted.classes) == (60, 4)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"level": 0.0}, "level"),
        ({"level": 90.0}, "level"),
        ({"level": math.nan}, "level"),
        ({"risk": 5}, "risk"),
        ({"delta": 0}, "delta"),
        ({"method": "rap"}, "'raps'"),
    ],
)
def test_settings_out_of_range_raise(draw, settings, word):
    with pytest.raises(UserError, match=word):
        calibrate(*draw(2, 60, 4), **settings)


@pytest.mark.parametrize(("method", "level", "needed"), [("lac", 0.95, 19), ("raps", 0.8, 20)])
def test_too_few_samples_raise(draw, method, level, needed):
    logits, labels = draw(2, 60, 4)
    calibrate(logits[:, :needed], labels[:needed], method=method, level=level)
    with pytest.raises(UserError, match=f"{needed - 1} held-out"):
        calibrate(logits[:, : needed - 1], labels[: needed - 1], method=method, level=level)


def test_probabilities_instead_of_logits_raise(draw):
    logits, labels = draw(2, 60, 4)
    with pytest.raises(UserError, match="probabilities"):
        calibrate(logits.softmax(-1), labels)
    fitted = calibrate(logits, labels)
    for shift in (logits.amin(), (logits.sum(-1, keepdim=True) - 1) / 4):  # positive logits, or of sum one, are fine
        assert calibrate(logits - shift, labels).temperature == pytest.approx(fitted.temperature, rel=1e-4)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_temperatures_that_are_not_positive_raise(temperature):
    with pytest.raises(UserError, match="temperature"):
        Calibration(temperature)


def test_a_dict_of_something_else_raises():
    for fields in ({}, {"conformal": {}, "selective": None}, Calibration().to_dict() | {"temperature": "x"}):
        with pytest.raises(UserError, match="calibration"):
            Calibration.from_dict(fields)
