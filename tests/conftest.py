"""What lies beside the repository during development (../shared) is used if it is there; tests say when it is not."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mixmo import data
from mixmo.cli.app import main
from mixmo.data.types import Dataset
from mixmo.engine import Runtime, train
from mixmo.recipes import named
from mixmo.runs.directory import Run
from mixmo.utils.progress import Board, Work

pytest.register_assert_rewrite("helpers")  # so that what differs is shown
torch.set_num_threads(1)  # two test processes on two cores: threads that spin for each other cost a hundredfold


class Reference(dict[str, np.ndarray]):
    """Tensors from the authors' code, by key; the test that asks for one that is not here skips."""

    def __missing__(self, key: str) -> np.ndarray:
        pytest.skip(f"'{key}' is not in the committed excerpt, and the whole reference is not beside the repository")


@pytest.fixture(scope="session")
def reference() -> Reference:
    """All tensors of ../shared/reference/authors_code.npz, or else the excerpt in this folder."""
    here = Path(__file__).resolve()
    whole = [parent / "shared" / "reference" / "authors_code.npz" for parent in here.parents]
    path = next((path for path in whole if path.is_file()), here.with_name("reference_excerpt.npz"))
    with np.load(path, allow_pickle=False) as arrays:
        return Reference({key: arrays[key] for key in arrays.files})


@pytest.fixture(scope="session")
def cifar100_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the original CIFAR-100 files: $MIXMO_DATA, or restored from the shared folder."""
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


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return data.load("digits")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two small finished runs on the digits: one with two members, one ordinary network."""
    folder = tmp_path_factory.mktemp("small")
    recipes = {m: named(f"digits/{m}").replace(epochs=2, width=1, batch_size=256) for m in ("cut-mixmo", "vanilla")}
    return [train(recipe, folder / m, Runtime(device="cpu", quiet=True)) for m, recipe in recipes.items()]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one sentence of a refused command."""

    def said(*arguments: object) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("mixmo: ")
        assert err.count("\n") == 1
        return err

    return said


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """The long work that is shown from now on, in order."""
    seen: list[Work] = []
    begin = Board.begin
    monkeypatch.setattr(Board, "begin", lambda board, work: (seen.append(work), begin(board, work)))
    return seen


@pytest.fixture
def float64() -> Iterator[None]:
    """New tensors and modules in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def draw() -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a function (members, samples, classes, seed) -> logits (M, N, K), labels (N,).

    Members err together at times; every count is positive.
    """

    def draw(members: int, samples: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(classes, (samples,), generator=generator)
        shared = torch.randn(samples, classes, generator=generator, dtype=torch.float64)
        own = torch.randn(members, samples, classes, generator=generator, dtype=torch.float64)
        signal = 2 * torch.nn.functional.one_hot(labels, classes)
        return 1.5 * (shared + own + signal), labels

    return draw
