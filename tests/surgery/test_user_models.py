"""Backbones module:function: run only where the user allowed it, called with the arguments that they take."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mixmo
from mixmo.surgery import user_models
from mixmo.surgery.backbones import wrap_backbone

MODULE = """
import sys
from torch import nn

sys.modules["mixmo_test_imported"] = sys.modules[__name__]

def plain(classes):
    conv = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes))

def make(num_classes):
    return plain(num_classes)

def of_kwargs(**options):
    assert options.keys() == {"num_classes"}
    return plain(options["num_classes"])

def fixed():
    return plain(7)

given = {}
def takes_all(num_classes, in_chans, img_size, drop_path_rate=0.5, pretrained=True):
    given.update(in_chans=in_chans, img_size=img_size, drop_path_rate=drop_path_rate, pretrained=pretrained)
    return plain(num_classes)

def fails(num_classes):
    raise ValueError("no such width\\nsecond line")

def no_model(num_classes):
    return 3

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current folder, which is not on the path of modules."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "backbones.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(user_models, "_allowed", set())
    monkeypatch.setattr(user_models, "_files", {})
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    yield "shop.backbones"
    for name in ("shop", "shop.backbones", "mixmo_test_imported"):
        sys.modules.pop(name, None)


def made(name: str, classes: int = 5, **options: Any) -> mixmo.Wrapped:
    return wrap_backbone(name, classes, (3, 16, 16), members=2, **options)


def assert_fails(word: str, name: str, **options: Any) -> None:
    with pytest.raises(mixmo.UserError, match=word) as caught:
        made(name, **options)
    assert "\n" not in str(caught.value)


def test_code_that_was_not_allowed_is_not_run(module: str) -> None:
    assert_fails(rf"module '{module}'.*--plugin {module}.*allow\('{module}'\)", f"{module}:make")
    user_models.allow(f"{module}:fixed")
    assert_fails(f"module '{module}'", f"{module}:make")
    assert_fails("module 'os'", "os:system")
    assert "mixmo_test_imported" not in sys.modules


@pytest.mark.parametrize("function", ["", ":make"], ids=["module", "function"])
def test_an_allowed_module_of_the_current_folder_is_imported(module: str, function: str) -> None:
    user_models.allow(module + function)
    assert made(f"{module}:make").classes == 5


@pytest.mark.parametrize("name", ["backbones:make", "shop.backbones:make"])
def test_a_loaded_file_is_found_by_the_end_of_its_path(module: str, name: str, tmp_path: Path) -> None:
    loaded = type(sys)("loaded")
    loaded.make = lambda num_classes: nn.Sequential(nn.Conv2d(3, 8, 16), nn.Flatten(), nn.Linear(8, num_classes))  # type: ignore[attr-defined]
    user_models.allow_file(tmp_path / "shop" / "backbones.py", loaded)
    assert made(name).heads == ("2",)
    assert "mixmo_test_imported" not in sys.modules
    assert_fails("module 'ackbones'", "ackbones:make")


def test_a_function_gets_the_arguments_that_it_takes(module: str) -> None:
    user_models.allow(module)
    made(f"{module}:takes_all")
    given = sys.modules[module].given
    assert given == {"in_chans": 3, "img_size": 16, "drop_path_rate": 0.0, "pretrained": False}
    made(f"{module}:takes_all", drop_path=0.2, pretrained=True)
    assert given == {"in_chans": 3, "img_size": 16, "drop_path_rate": 0.2, "pretrained": True}
    assert made(f"{module}:of_kwargs").classes == 5
    assert_fails("no argument drop_path_rate; leave drop_path out", f"{module}:make", drop_path=0.2)


def test_a_function_without_an_argument_pretrained_keeps_the_weights_it_returns(module: str) -> None:
    """A recipe of finetune/ asks for pretrained weights; the function decides what these are."""
    user_models.allow(module)
    torch.manual_seed(3)
    net = made(f"{module}:make", pretrained=True)
    torch.manual_seed(3)
    model = sys.modules[module].make(5)
    torch.testing.assert_close(sum(copy.weight for copy in net.encoders_at("0.0").copies), model[0][0].weight)


def test_fixed_classes_are_converted(module: str, tmp_path: Path) -> None:
    user_models.allow(module)
    assert made(f"{module}:fixed", classes=7).classes == 7
    weights = tmp_path / "weights.pth"
    torch.manual_seed(3)
    net = made(f"{module}:fixed", classes=7)
    model = sys.modules[module].fixed()
    torch.save(model.state_dict(), weights)
    net = made(f"{module}:fixed", weights=str(weights))
    assert net.each(torch.zeros(2, 3, 16, 16)).shape == (2, 2, 5)
    torch.testing.assert_close(sum(copy.weight for copy in net.encoders_at("0.0").copies), model[0][0].weight)
    assert net.about is None  # the normalisation is not known


@pytest.mark.parametrize(
    ("function", "word"),
    [
        ("none", "has no function 'none'"),
        ("number", "has no function 'number'"),
        ("fails", "fails with ValueError: no such width; "),
        ("no_model", "the model is a int"),
    ],
)
def test_functions_that_make_no_model_raise(module: str, function: str, word: str) -> None:
    user_models.allow(module)
    assert_fails(word, f"{module}:{function}")
    assert_fails(word, f"{module}:{function}", weights="weights.pth")


def test_a_module_that_cannot_be_imported_raises(module: str, tmp_path: Path) -> None:
    (tmp_path / "shop" / "bad.py").write_text("import nothing_of_this_name\n")
    user_models.allow("shop.bad")
    assert_fails(r"'shop.bad' cannot be imported \(ModuleNotFoundError", "shop.bad:make")
