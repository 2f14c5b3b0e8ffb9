"""User-defined components in files and installed packages are found by the commands."""

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import mixmo
from mixmo.cli.app import main
from mixmo.mixing.masks import MASKS
from mixmo.runs.directory import Run
from mixmo.surgery import user_models
from mixmo.utils.errors import UserError

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


BACKBONE = """
from torch import nn


def make(num_classes, in_chans):
    features = [nn.Conv2d(in_chans, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*features, nn.Linear(8, num_classes))
"""


def test_a_backbone_of_the_user_needs_the_model_option_or_the_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(user_models, "_allowed", set())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_backbones.py").write_text(BACKBONE)
    train = ["train", "digits/cut-mixmo", "--epochs", "1", "--device", "cpu", "--quiet"]
    assert main([*train, "--model", "my_backbones:make", "--out", "run"]) == 0
    user_models._allowed.clear()
    config = ["--config", "run/recipe.yaml", "--no-time"]
    for command in (["eval", "run", "--on", "digits"], ["show", "digits/cut-mixmo", *config]):
        capsys.readouterr()
        message = said(*command)
        assert "my_backbones" in message
        assert "--plugin my_backbones" in message
        for plugin in ("my_backbones", "my_backbones.py"):
            assert main([*command, "--plugin", plugin]) == 0
            user_models._allowed.clear()
            user_models._files.clear()
            sys.modules.pop("mixmo_plugin_my_backbones", None)
    with pytest.raises(UserError, match=r"user_models\.allow"):
        mixmo.load("run")
    user_models.allow("my_backbones")
    assert isinstance(mixmo.load("run"), mixmo.Wrapped)
    assert "no_such_module" in said("list", "masks", "--plugin", "no_such_module")


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


def test_a_logger_of_a_plugin_file_is_not_imported_again(tmp_path: Path) -> None:
    """A second import would register the file's components twice."""
    file, out = plugin(tmp_path / "logging_mask.py", "logged"), tmp_path / "run"
    with file.open("a") as opened:
        opened.write(
            "class Lines:\n"
            "    def log_metrics(self, metrics, step=None):\n"
            f"        open({str(tmp_path / 'steps')!r}, 'a').write(f'{{step}} ')\n"
            "    def log_hyperparams(self, params): pass\n"
            "    def finalize(self, status): pass\n"
        )
    words = ["--mask", "logged", "--epochs", "1", "--width", "1", "--device", "cpu", "--quiet", "--out", str(out)]
    assert main(["train", "digits/cut-mixmo", *words, "--logger", "logging_mask.Lines", "--plugin", str(file)]) == 0
    assert (tmp_path / "steps").read_text().split() == ["44"]
