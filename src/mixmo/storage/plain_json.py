"""Read JSON that may be untrusted: the numbers in it can be computed with."""

import json
from typing import Any

DIGITS = 20  # of an integer; more than any file of ours has


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text.

    Raises:
        ValueError: If it is no JSON, is nested too deep, or has an integer of more than 20 digits.
    """
    try:
        return json.loads(text, parse_int=_whole)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"it has an integer of {len(digits):,} digits")
    return int(digits)
