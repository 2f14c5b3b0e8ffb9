"""Metadata of a network survives JSON and rejects what does not fit."""

import json
from typing import Any

import pytest

from mixmo import About, Calibration, UserError

ABOUT = About((3, 32, 32), (0.5,) * 3, (0.2,) * 3, ("a", "b"), 40, "pets", {"top1": 0.8}, Calibration(2.0))


def test_round_trip_through_json() -> None:
    assert About.from_dict(json.loads(json.dumps(ABOUT.to_dict()))) == ABOUT
    assert About.from_dict(ABOUT.to_dict() | {"later": 1}) == ABOUT  # keys of a later version are ignored


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("size", [32, 32], "size"),
        ("size", [3, 10**6, 10**6], "at most 4,096"),
        ("resize", 10**9, "at most 4,096"),
        ("mean", [0.5], "mean"),
        ("std", [0.2, 0.2, 0.0], "std"),
        ("classes", "ab", "classes"),
        ("classes", [0, 1], "classes"),
        ("resize", 8, "resize"),
        ("mean", None, "metadata"),
        ("calibration", {}, "calibration"),
    ],
)
def test_fields_that_do_not_fit_raise(field: str, value: Any, word: str) -> None:
    with pytest.raises(UserError, match=word):
        About.from_dict(ABOUT.to_dict() | {field: value})


def test_a_dict_of_something_else_raises() -> None:
    with pytest.raises(UserError, match="metadata"):
        About.from_dict({})
