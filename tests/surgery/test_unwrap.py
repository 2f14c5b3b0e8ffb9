"""Models as users have them: compiled, spread over devices, averaged, scripted, quantised, with hooks and locks."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.optim.swa_utils import AveragedModel

import mixmo
from helpers import refused

END = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]


def model() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3), *END, nn.Linear(8, 5))


AROUND: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled": lambda inner: torch.compile(inner, backend="eager"),  # type: ignore[dict-item]
    "parallel": nn.DataParallel,
    "averaged": AveragedModel,
    "both": lambda inner: torch.compile(nn.DataParallel(inner), backend="eager"),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("kind", AROUND)
def test_what_is_around_a_model_is_taken_off(kind: str, tmp_path: Path) -> None:
    """Before wrapping, and from a wrapped network that was trained so."""
    own, images = model().eval(), torch.randn(2, 3, 16, 16)
    net = mixmo.wrap(AROUND[kind](own))
    assert (net.stems, net.heads) == (("0",), ("4",))
    torch.testing.assert_close(net(images), own(images))
    around = AROUND[kind](net).eval()
    expected = around.module.each(images) if kind == "averaged" else net.each(images)
    assert torch.equal(mixmo.predict(around, images).logits, expected)  # type: ignore[arg-type]
    torch.testing.assert_close(mixmo.fold(around).each(images), expected)  # type: ignore[type-var]
    assert mixmo.convert(around, members=3).members == 3  # type: ignore[type-var]
    folder = mixmo.save_pretrained(around, tmp_path / "saved")  # type: ignore[arg-type]
    assert torch.equal(mixmo.from_pretrained(folder, model()).each(images), expected)


def test_layers_that_cannot_be_replaced() -> None:
    refused(torch.jit.script(model()), "the model is one of torch.jit.*give the model that it was made of")
    refused(torch.jit.trace(model(), torch.zeros(1, 3, 8, 8)), "the model is one of torch.jit")
    part = model()
    part[4] = torch.jit.script(part[4])
    refused(part, "layer '4' is one of torch.jit")


@pytest.mark.filterwarnings("ignore")
def test_quantised_layers() -> None:
    refused(quantization.quantize_dynamic(model(), {nn.Linear}), "layer '4' is quantised.*precision='int8'")
    prepared = model().train()
    prepared.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    refused(quantization.prepare_qat(prepared), "layer '0' is quantised")

    class Quantisable(nn.Module):
        """Could be quantised, but is not: as torchvision.models.quantization are."""

        def __init__(self) -> None:
            super().__init__()
            self.quant, self.add, self.rest = quantization.QuantStub(), torch.ao.nn.quantized.FloatFunctional(), model()

        def forward(self, x: Tensor) -> Tensor:
            x = self.quant(x)
            return self.rest(self.add.add(x, x))

    assert mixmo.wrap(Quantisable()).stems == ("rest.0",)


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_norms_of_the_old_kind(kind: str) -> None:
    """They leave a tensor of the last graph in the layer, which deepcopy refuses."""
    old = model()
    getattr(nn.utils, kind)(old[0])
    refused(old, rf"'0' has a torch.nn.utils.{kind}.*torch.nn.utils.parametrizations")


def test_a_model_that_cannot_be_copied() -> None:
    locked = model()
    locked.lock = threading.Lock()
    refused(locked, r"cannot be copied \(.*lock.*\); take off it")


def test_a_stem_that_is_called_by_no_name() -> None:
    """A list holds the layer itself: what is put in the place of its name is never called."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)
            self.order = [self.conv]

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.order[0](x).relu().mean((2, 3)))

    refused(Listed(), "does not call its stem 'conv' by this name.*stem=")


def test_a_stem_that_sees_more_images_than_there_are() -> None:
    class Crops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            both = self.conv(torch.cat([x, x.flip(-1)])).relu().mean((2, 3))
            return self.head(both).unflatten(0, (2, -1)).mean(0)

    refused(Crops(), "stem 'conv' is called with 4 images for 2")


class Features(nn.Module):
    """Returns what its head reads beside its logits."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.body, self.head, self.named = nn.Sequential(nn.Conv2d(3, 8, 3), *END), nn.Linear(8, 5), named

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor] | dict[str, Tensor]:
        features = self.body(x)
        logits = self.head(features)
        return {"features": features, "logits": logits} if self.named else (logits, features)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_features_are_no_second_answer(named: bool, frozen: bool) -> None:
    own = Features(named).requires_grad_(not frozen)
    net = mixmo.wrap(own)
    assert net.heads == ("head",)
    images = torch.randn(2, 3, 16, 16)
    output = own(images)
    torch.testing.assert_close(net(images), output["logits"] if isinstance(output, dict) else output[0])


def test_arguments_of_another_kind() -> None:
    own = model()
    refused(own, "stem is a Conv2d; give the layer's name", stem=own[0])
    refused(own, "head is a int; give the layer's name", head=4)
    refused(own, "head is a Linear; give the layer's name", head=[own[4]])
    for size in ((3.0, 32.0, 32.0), ("3", "32", "32"), "abc"):
        refused(own, "give channels, height and width", size=size)
    for apart in (-0.1, 1.1, float("nan"), "0.1", None):
        refused(own, "apart = .*give a number", apart=apart)


def test_an_error_without_words_is_named() -> None:
    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError

    refused(Picky(), r"for \(3, 64, 64\): NotImplementedError\)")


def test_wrapped_and_loaded_in_inference_mode(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    with torch.inference_mode():
        model = timm.create_model("test_vit", num_classes=4, img_size=32)
        net = mixmo.wrap(model)
        again = mixmo.load(mixmo.save_pretrained(net, tmp_path / "saved"))
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(again.each(images), net.eval().each(images))
    for one in (net, again):
        mix = mixmo.Mixer("cut", stride=one.stride)(images, torch.arange(4))
        mixmo.loss(one(mix), mix).backward()
