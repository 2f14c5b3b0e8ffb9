"""Real data for the tests that have it."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def real_root() -> Path:
    """$MIXMO_DATA, for the sets that are too slow to restore in a test; the test skips what is not in it."""
    given = os.environ.get("MIXMO_DATA")
    if not given:
        pytest.skip("MIXMO_DATA is not set")
    return Path(given)
