"""JSON of strangers: its numbers can be computed with."""

import pytest

from mixmo.storage.plain_json import parse_json


def test_plain_json_is_read() -> None:
    assert parse_json('{"step": 18446744073709551615, "top1": [0.5, null]}') == {"step": 2**64 - 1, "top1": [0.5, None]}


@pytest.mark.parametrize("text", ['{"seconds": %s}' % ("9" * 400), "[" * 200_000, "{"])
def test_what_cannot_be_used_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"integer of 400 digits|nested too deep|Expecting"):
        parse_json(text)
