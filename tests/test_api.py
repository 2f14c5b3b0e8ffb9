"""The public API: names load lazily, hide no module, and what users get wrong raises a UserError of one line."""

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

import mixmo

IMAGES, LABELS = torch.zeros(4, 3, 8, 8), torch.arange(4)
LOGITS = torch.randn(2, 200, 5, generator=torch.Generator().manual_seed(0))
OPTIONAL = ("mixmo.integrations.",)  # modules that need a package which may not be installed


def packages() -> list[ModuleType]:
    """mixmo and all its packages, each of their modules imported."""
    found = [mixmo]
    for info in pkgutil.walk_packages(mixmo.__path__, "mixmo."):
        if info.name != "mixmo.__main__" and not info.name.startswith(OPTIONAL):
            module = importlib.import_module(info.name)
            found += [module] if info.ispkg else []
    return found


def test_every_public_name_can_be_used() -> None:
    assert dir(mixmo) == mixmo.__all__
    for name in mixmo.__all__:
        assert getattr(mixmo, name) is getattr(mixmo, name)
    with pytest.raises(AttributeError, match="nonsense"):
        mixmo.nonsense  # noqa: B018


def test_type_checkers_see_the_public_names_where_they_are_defined() -> None:
    tree = ast.parse(inspect.getsource(mixmo))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    assert seen == {name: f"mixmo.{module}.{name}" for name, module in mixmo._HOME.items()}
    assert sorted(["__version__", *seen]) == mixmo.__all__


def test_no_name_of_a_package_hides_a_module() -> None:
    """`import mixmo.a.b` gives the module b, never a function or class of this name."""
    for package in packages():
        for info in pkgutil.iter_modules(package.__path__):
            value = vars(package).get(info.name)
            assert value is None or inspect.ismodule(value), f"{package.__name__}.{info.name} is a {type(value)}"


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name in mixmo.__all__ if name != "__version__" and not inspect.getdoc(getattr(mixmo, name))] == []


@pytest.fixture(scope="module")
def net() -> mixmo.Network:
    return mixmo.create("wrn10_1", classes=5)


# What users get wrong: the call, and the word of the message that matters.
MISTAKES: dict[str, tuple[Callable[[mixmo.Network], object], str]] = {
    "unknown model": (lambda _: mixmo.create("lenet5_1", 5), "lenet"),
    "wrap no module": (lambda _: mixmo.wrap(None), "NoneType"),
    "wrap with 0 members": (lambda _: mixmo.wrap(torch.nn.Conv2d(3, 8, 3), 0), "members"),
    "predict a list": (lambda net: mixmo.predict(net, [[1.0]]), "list"),
    "predict with a plain model": (lambda _: mixmo.predict(torch.nn.Conv2d(3, 8, 3), IMAGES), "Conv2d"),
    "predict with no batch": (lambda net: mixmo.predict(net, IMAGES, batch_size=0), "batch_size"),
    "predict with a float as calibration": (lambda net: mixmo.predict(net, IMAGES, calibration=1.5), "calibration"),
    "logits of one member": (lambda _: mixmo.Prediction(LOGITS[0]), "members, samples, classes"),
    "unknown mask": (lambda _: mixmo.Mixer("cutt"), "cutt"),
    "mixed for other members": (lambda net: net(mixmo.Mixer(members=3)(IMAGES, LABELS)), "members=2"),
    "pixels for floats": (lambda net: net(IMAGES.byte()), "uint8"),
    "fold a plain model": (lambda _: mixmo.fold(torch.nn.Conv2d(3, 8, 3)), "Conv2d"),
    "convert a plain model": (lambda _: mixmo.convert(torch.nn.Conv2d(3, 8, 3)), "Conv2d"),
    "convert to one class": (lambda net: mixmo.convert(net, classes=1), "classes"),
    "diversity above 1": (lambda net: mixmo.convert(net, members=3, diversity=2), "diversity"),
    "calibrate probabilities": (lambda _: mixmo.calibrate(LOGITS.softmax(-1), torch.arange(200) % 5), "logits"),
    "load from nowhere": (lambda _: mixmo.load("nowhere"), "nowhere"),
    "load no path": (lambda _: mixmo.load(None), "where"),
    "read from nowhere": (lambda _: mixmo.from_pretrained("nowhere"), "nowhere"),
    "save with a dict": (lambda net: mixmo.save_pretrained(net, "new", about={}), "dict"),
    "push without an owner": (lambda net: mixmo.push_to_hub(net, "name"), "OWNER/NAME"),
    "export to another format": (lambda net: mixmo.export(net, "new.pkl"), "onnx"),
    "export in another precision": (lambda net: mixmo.export(net, "new.pt2", precision="fp16"), "fp16"),
    "export with too few names": (lambda net: mixmo.export(net, "new.pt2", classes=["cat"]), "class names"),
    "export with one number as mean": (lambda net: mixmo.export(net, "new.pt2", mean=0.5, std=0.2), "mean"),
    "quantise without images": (lambda net: mixmo.export(net, "new.onnx", precision="int8"), "calibration"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_raise_one_line_and_write_nothing(
    net: mixmo.Network, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, word = MISTAKES[case]
    with pytest.raises(mixmo.UserError, match=word) as caught:
        call(net)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
