"""User-defined components in files and installed packages are found by the commands."""

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mixmo.cli.app import main
from mixmo.mixing.masks import MASKS
from mixmo.runs.directory import Run

MINE = """
import torch
from mixmo.mixing.masks import MASKS, Mask


def left(kappa_N, u_N1, h, w):
    \"\"\"The left kappa of the columns.\"\"\"
    return (torch.arange(w) < kappa_N[:, None] * w).float()[:, None].expand(-1, h, -1)


MASKS.add("NAME")(Mask(left, uniforms=lambda h, w: 1, minimum=1))
"""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a plugin registers is forgotten afterwards."""
    monkeypatch.setattr(MASKS, "_things", dict(MASKS._things))
    return


def plugin(path: Path, name: str) -> Path:
    path.write_text(MINE.replace("NAME", name))
    return path


def test_train_and_eval_use_a_mask_of_a_plugin(tmp_path: Path) -> None:
    file, out = plugin(tmp_path / "f.py", "mine"), str(tmp_path / "run")
    words = ["--mask", "mine", "--epochs", "1", "--width", "1", "--device", "cpu", "--quiet", "--out", out]
    assert main(["train", "digits/cut-mixmo", *words, "--plugin", str(file)]) == 0
    assert Run.open(out).recipe.mask == "mine"
    assert main([f"--plugin={file}", "eval", out]) == 0


def test_plugins_come_from_the_environment_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MIXMO_PLUGINS", str(plugin(tmp_path / "g.py", "ours")))
    assert main(["list", "masks", "ours"]) == 0
    assert "The left kappa of the columns." in capsys.readouterr().out


def test_plugin_that_cannot_be_imported_is_an_error(tmp_path: Path, said: Callable[..., str]) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    assert "no_such_module" in said("list", "masks", "--plugin", tmp_path / "broken.py")
    assert "absent.py" in said("list", "masks", "--plugin", tmp_path / "absent.py")
    assert "'cut'" in said("list", "masks", "--plugin", plugin(tmp_path / "taken.py", "cut"))
    assert "--plugin" in said("list", "--plugin")


def test_installed_plugin_that_fails_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [EntryPoint("broken", "no_such_module", "mixmo.plugins"), EntryPoint("fine", "json", "mixmo.plugins")]
    monkeypatch.setattr("mixmo.cli.plugins.entry_points", lambda group: entries)
    with pytest.warns(UserWarning, match="broken"):
        assert main(["list", "masks"]) == 0
    assert "cut" in capsys.readouterr().out
