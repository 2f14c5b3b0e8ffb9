"""Two small finished runs on the digits: one with two members, one ordinary network."""

import pytest

from mixmo import cli
from mixmo.engine import Runtime, train
from mixmo.recipes import named
from mixmo.runs import Run

SMALL = {"epochs": 2, "width": 1, "batch_size": 256}
QUIET = Runtime(device="cpu", quiet=True)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("analysed")
    recipes = {name: named(f"digits/{name}").replace(**SMALL) for name in ("cut-mixmo", "vanilla")}
    return [train(recipe, folder / name, QUIET) for name, recipe in recipes.items()]


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("analyse", "plot"):
        monkeypatch.setitem(cli.COMMANDS, name, "tested here")
