"""What lies beside the repository during development (../shared) is used if it is there; tests say when it is not."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from mixmo import data
from mixmo.types import Dataset

torch.set_num_threads(1)  # two test processes on two cores: threads that spin for each other cost a hundredfold


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference tensors and real data."""
    for parent in Path(__file__).resolve().parents:
        if (parent / "shared" / "reference" / "authors_code.npz").is_file():
            return parent / "shared"
    pytest.skip("no shared folder beside the repository: the reference tensors and real data are not here")


@pytest.fixture(scope="session")
def reference(shared: Path) -> dict[str, np.ndarray]:
    """Tensors from the authors' code, by key."""
    with np.load(shared / "reference" / "authors_code.npz", allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return data.load("digits")


@pytest.fixture
def float64() -> Iterator[None]:
    """New tensors and modules in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
