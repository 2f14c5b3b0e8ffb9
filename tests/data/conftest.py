"""Real data for the tests that have it: $MIXMO_DATA, else what the shared folder beside the checkout restores."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cifar100_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the original CIFAR-100 files, or skip."""
    given = os.environ.get("MIXMO_DATA")
    if given and (Path(given) / "cifar-100-python").is_dir():
        return Path(given)
    for parent in Path(__file__).resolve().parents:
        script = parent / "shared" / "data" / "restore.py"
        if script.is_file():
            root = tmp_path_factory.mktemp("cifar100")
            subprocess.run([sys.executable, script, "cifar100", "--to", root], check=True, capture_output=True)
            return root
    pytest.skip("no CIFAR-100: neither $MIXMO_DATA nor a shared/data/restore.py above the tests")


@pytest.fixture
def real_root() -> Path:
    """$MIXMO_DATA, for the sets that are too slow to restore in a test; the test skips what is not in it."""
    given = os.environ.get("MIXMO_DATA")
    if not given:
        pytest.skip("MIXMO_DATA is not set")
    return Path(given)
