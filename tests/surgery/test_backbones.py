"""Backbones by name: made, filled with weights and wrapped; every bad input is one sentence."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import mixmo
from mixmo.surgery import libraries
from mixmo.surgery.backbones import wrap_backbone

timm = pytest.importorskip("timm")
models = pytest.importorskip("torchvision").models

CASES = {  # name: (size, stride of the stem)
    "timm/test_resnet": ((3, 32, 32), 2),
    "timm/test_convnext": ((3, 64, 64), 4),
    "timm/test_vit": ((1, 48, 32), 16),  # trained at 160x160
    "timm/test_efficientnet": ((4, 32, 32), 2),
    "torchvision/resnet18": ((3, 32, 32), 2),
    "torchvision/mobilenet_v3_small": ((3, 32, 32), 2),
    "torchvision/squeezenet1_1": ((3, 64, 64), 2),
}
SMALL = "timm/test_resnet"
SIZE = (3, 32, 32)


def made(name: str = SMALL, classes: int = 5, size: tuple[int, int, int] = SIZE, **options: Any) -> mixmo.Wrapped:
    return wrap_backbone(name, classes, size, **{"members": 2} | options)


def bare(name: str = SMALL, classes: int = 1000) -> nn.Module:
    library, _, short = name.partition("/")
    torch.manual_seed(1)
    if library == "timm":
        return timm.create_model(short, num_classes=classes).eval()  # type: ignore[no-any-return]
    return models.get_model(short, num_classes=classes).eval()  # type: ignore[no-any-return]


def assert_fails(word: str, *args: Any, **options: Any) -> None:
    with pytest.raises(mixmo.UserError, match=word) as caught:
        made(*args, **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("model = ")


def file_of(path: Path, tensors: Any) -> str:
    if path.suffix == ".safetensors":
        safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    else:
        torch.save(tensors, path)
    return str(path)


@pytest.mark.parametrize("name", CASES)
def test_backbones_are_made_for_classes_and_images(name: str) -> None:
    size, stride = CASES[name]
    net = made(name, 7, size, members=3)
    assert (net.members, net.classes, net.size, net.stride, net.about) == (3, 7, size, stride, None)
    assert net.training
    again = made(name, 7, size, members=3)
    assert [(n, t.shape) for n, t in again.state_dict().items()] == [(n, t.shape) for n, t in net.state_dict().items()]
    again.load_state_dict(net.state_dict())
    images = torch.randn(2, *size)
    torch.testing.assert_close(again.eval().each(images), net.eval().each(images))


def test_without_weights_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: Any, **__: Any) -> None:
        raise AssertionError("a download")

    monkeypatch.setattr("socket.socket.connect", no_network)
    made()
    made("torchvision/resnet18")


def test_drop_path_is_set_where_the_model_has_it() -> None:
    def rates(net: mixmo.Wrapped) -> list[float]:
        found = [getattr(layer, "drop_prob", getattr(layer, "p", None)) for layer in net.backbone.modules()]
        kinds = [type(layer).__name__ for layer in net.backbone.modules()]
        return [rate for rate, kind in zip(found, kinds, strict=True) if kind in ("DropPath", "StochasticDepth")]

    assert max(rates(made("timm/test_convnext", size=(3, 64, 64), drop_path=0.3))) == pytest.approx(0.3)
    for rate in (0.0, 0.25):  # torchvision's own default is 0.2
        assert max(rates(made("torchvision/efficientnet_b0", drop_path=rate))) == pytest.approx(rate, abs=0.02)
    for name in ("timm/vgg11", "torchvision/resnet18", "torchvision/mobilenet_v3_small"):
        assert_fails("no drop path", name, drop_path=0.1)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("timm/test_resnett", "did you mean 'test_resnet'"),
        ("timm/test_resnet.a1", "weights of timm's test_resnet 'a1'; there are: r160_in1k"),
        ("timm/hf-hub:timm/test_resnet.r160_in1k", "unknown timm model"),
        ("torchvision/resnet19", "did you mean 'resnet18'"),
        ("torchvision/fcn_resnet50", "unknown torchvision model"),
    ],
)
def test_unknown_names_suggest_others(name: str, word: str) -> None:
    assert_fails(word, name)


def test_a_tag_of_timm_names_the_weights() -> None:
    assert made("timm/test_resnet.r160_in1k").backbone.pretrained_cfg["tag"] == "r160_in1k"


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_library_that_is_not_installed_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(libraries, "importlib", type("without", (), {"import_module": import_module}))
    assert_fails(f"pip install {library}", f"{library}/resnet18")


@pytest.mark.parametrize(
    ("name", "size", "word"),
    [
        ("timm/test_vit", (3, 40, 40), r"no images of \(3, 40, 40\).*divisible by patch size.*another size"),
        ("torchvision/maxvit_t", (3, 32, 32), r"no images of \(3, 32, 32\)"),
        ("torchvision/resnet18", (1, 32, 32), "3 channels and the images have 1"),
        ("torchvision/inception_v3", (3, 75, 75), "in eval mode, not in training .*; give larger images"),
    ],
)
def test_images_that_a_model_does_not_take(name: str, size: tuple[int, int, int], word: str) -> None:
    assert_fails(word, name, size=size)


def test_stem_and_head_can_be_named_and_are_asked_for() -> None:
    assert made(stem="conv1.0", head="fc").heads == ("fc",)
    assert_fails("unknown head layer 'fcc'; did you mean 'fc'", head="fcc")
    assert_fails(r"does not output 5 classes; name it by head \(--head\), such as fc$", head="layer4")
    assert_fails(r"name the first layer by stem \(--stem\), such as conv1.0, conv1.3,", stem="layer1.0.conv1")
    assert_fails(r"name the one to train by head \(--head\)", "torchvision/googlenet", size=(3, 64, 64))


SAVED: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "plain.pth": lambda state: state,
    "plain.safetensors": lambda state: state,
    "nested.pt": lambda state: {"state_dict": state, "epoch": 3},
    "twice.pt": lambda state: {"model": {"state_dict": state}},
    "average.pt": lambda state: {"model_ema": state},
    "parallel.pt": lambda state: {"model_state": {f"module._orig_mod.{name}": t for name, t in state.items()}},
    "held.safetensors": lambda state: {f"backbone.{name}": tensor for name, tensor in state.items()},
}


@pytest.mark.parametrize("file", SAVED)
def test_weights_of_a_file_are_the_network(file: str, tmp_path: Path) -> None:
    model = bare(classes=5)
    net = made(weights=file_of(tmp_path / file, SAVED[file](model.state_dict()))).eval()
    images = torch.randn(2, *SIZE)
    torch.testing.assert_close(net.each(images), model(images).expand(2, -1, -1), rtol=1e-3, atol=1e-4)
    assert net.about == mixmo.About(SIZE, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.mark.parametrize("name", [SMALL, "torchvision/resnet18", "torchvision/densenet121"])
def test_a_head_of_other_classes_is_new(name: str, tmp_path: Path) -> None:
    model = bare(name)
    net = made(name, weights=file_of(tmp_path / "weights.pth", model.state_dict()))
    heads = tuple(f"{head}." for head in net.heads)
    for key, tensor in net.backbone.state_dict().items():
        if ".copies." not in key and not key.endswith("num_batches_tracked"):
            assert torch.equal(tensor, model.state_dict()[key]), key
        if key.startswith(heads):
            assert len(tensor) == 5


def test_heads_beside_the_named_one_may_have_other_classes(tmp_path: Path) -> None:
    weights = file_of(tmp_path / "weights.pth", models.googlenet(weights=None, init_weights=False).state_dict())
    net = made("torchvision/googlenet", size=(3, 64, 64), head="fc", weights=weights)
    assert net.heads == ("fc",)
    assert net.about is not None
    assert net.about.mean == (0.5, 0.5, 0.5)  # its published weights read pixels in [-1, 1]


def test_names_in_the_files_of_densenets_are_read(tmp_path: Path) -> None:
    state = bare("torchvision/densenet121").state_dict()
    old = {re.sub(r"(layer\d+\.(?:norm|conv))([12])", r"\1.\2", name): tensor for name, tensor in state.items()}
    assert old.keys() != state.keys()
    net = made("torchvision/densenet121", weights=file_of(tmp_path / "weights.pth", old))
    name = "features.denseblock1.denselayer1.conv2.weight"
    assert torch.equal(net.backbone.state_dict()[name], state[name])


def test_positions_of_timm_are_resampled(tmp_path: Path) -> None:
    model = bare("timm/test_vit")
    net = made("timm/test_vit", size=(3, 64, 64), weights=file_of(tmp_path / "weights.pth", model.state_dict()))
    assert model.pos_embed.shape != net.backbone.pos_embed.shape
    assert torch.equal(net.backbone.cls_token, model.cls_token)


def test_normalisation_is_that_of_the_weights(tmp_path: Path) -> None:
    vit = file_of(tmp_path / "vit.pth", timm.create_model("test_vit", in_chans=1).state_dict())
    assert made("timm/test_vit", size=(1, 160, 160), weights=vit).about == mixmo.About((1, 160, 160), (0.5,), (0.5,))
    resnet = file_of(tmp_path / "resnet.pth", bare("torchvision/resnet18").state_dict())
    about = made("torchvision/resnet18", weights=resnet).about
    assert about == mixmo.About(SIZE, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    grey = file_of(tmp_path / "grey.pth", timm.create_model("resnet10t", in_chans=1).state_dict())
    about = made("timm/resnet10t", size=(1, 32, 32), weights=grey).about
    assert about is not None
    assert about.mean == pytest.approx(((0.485 + 0.456 + 0.406) / 3,))
    assert about.std == pytest.approx(((0.229 + 0.224 + 0.225) / 3,))


def broken(state: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    if kind == "missing":
        return {name: tensor for name, tensor in state.items() if not name.startswith("layer1.0.")}
    if kind == "unexpected":
        return state | {"layer5.weight": torch.zeros(1), "layer6.weight": torch.zeros(1)}
    if kind == "grey":
        return state | {"conv1.0.weight": state["conv1.0.weight"].sum(1, keepdim=True)}
    return {f"student.{name}": tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (
            "missing",
            r"do not fit the model's \d+ tensors: \d+ missing \(layer1.0.conv1.weight is missing.*and \d+ more",
        ),
        ("unexpected", "tensors: 2 unexpected .*layer5.weight is unknown"),
        ("grey", r"1 of another shape \(conv1.0.weight is \(\d+, 1, 3, 3\) there and \(\d+, 3, 3, 3\) in the network"),
        ("renamed", r"tensors: \d+ missing, \d+ unexpected \(conv1.0.weight is missing"),
    ],
)
def test_weights_that_do_not_fit_name_the_first_tensors(kind: str, word: str, tmp_path: Path) -> None:
    assert_fails(word, weights=file_of(tmp_path / "weights.pth", broken(bare(classes=5).state_dict(), kind)))


class Unsafe:
    def __reduce__(self) -> Any:
        return print, ("run",)


def test_files_that_cannot_be_read_raise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_fails("is not a file", weights=str(tmp_path / "none.pth"))
    assert_fails("cannot be read safely", weights=file_of(tmp_path / "unsafe.pth", {"a": Unsafe()}))
    assert "run" not in capsys.readouterr().out
    for name in ("text.pth", "text.safetensors", "empty.pth"):
        (tmp_path / name).write_text("" if "empty" in name else "no weights")
        assert_fails("cannot be read safely", weights=str(tmp_path / name))
    assert_fails("holds no state dict", weights=file_of(tmp_path / "numbers.pth", {"epoch": 3}))
    assert_fails("holds no state dict", weights=file_of(tmp_path / "list.pth", [torch.zeros(1)]))
    ours = file_of(tmp_path / "ours.safetensors", made().state_dict())
    assert_fails("a mixmo network; give its run or folder by start", weights=ours)


def published(monkeypatch: pytest.MonkeyPatch, name: str) -> nn.Module:
    """Let the libraries "download" a model of random weights."""
    model = bare(name)
    hub = importlib.import_module("timm.models._builder")
    monkeypatch.setattr(hub, "load_state_dict_from_hf", lambda *_, **__: dict(model.state_dict()))
    enum = importlib.import_module("torchvision.models._api").WeightsEnum
    monkeypatch.setattr(enum, "get_state_dict", lambda *_, **__: model.state_dict())
    return model


@pytest.mark.parametrize("name", [SMALL, "timm/test_vit", "torchvision/resnet18"])
def test_pretrained_weights_are_the_published_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = published(monkeypatch, name)
    size = (3, 160, 160) if "vit" in name else SIZE
    images = torch.randn(2, *size)
    net = made(name, 1000, size, pretrained=True).eval()
    torch.testing.assert_close(net.each(images)[1], model(images), rtol=1e-3, atol=1e-4)
    assert net.about is not None
    assert made(name, 5, size, pretrained=True).classes == 5
    assert made(name, 5, size).about is None


def test_pretrained_weights_of_timm_read_grey_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm sums the channels of the first convolution."""
    model = published(monkeypatch, SMALL)
    net = made(size=(1, 32, 32), pretrained=True)
    filters = sum(copy.weight for copy in net.encoders_at("conv1.0").copies)
    torch.testing.assert_close(filters, model.conv1[0].weight.sum(1, keepdim=True))


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (SMALL, "huggingface.co/timm/test_resnet.r160_in1k/resolve/main/model.safetensors"),
        ("torchvision/resnet18", "download.pytorch.org/models/resnet18-f37072fd.pth"),
    ],
)
def test_a_failed_download_says_which_file_to_give(name: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise OSError("Name or service not known\nsecond line")

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", offline)
    monkeypatch.setattr("torchvision.models._api.WeightsEnum.get_state_dict", offline)
    assert_fails(rf"Name or service.*{address} .*--weights FILE", name, pretrained=True)


def test_a_model_without_published_weights_raises() -> None:
    assert_fails("publishes no weights", "timm/dpn48b", pretrained=True)


def test_networks_of_backbones_are_saved_and_folded(tmp_path: Path) -> None:
    net = made("timm/test_vit", size=(1, 32, 32), drop_path=0.1).eval()
    again = mixmo.from_pretrained(mixmo.save_pretrained(net, tmp_path / "saved"))
    images = torch.randn(2, 1, 32, 32)
    torch.testing.assert_close(again.each(images), net.each(images))
    torch.testing.assert_close(mixmo.fold(net).each(images), net.each(images), rtol=1e-4, atol=1e-5)
