"""Models as users have them: compiled, data-parallel, averaged, scripted, quantised, with hooks and locks."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.optim.swa_utils import AveragedModel

import mixmo
from helpers import assert_wrap_fails

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
def test_a_model_is_taken_out_of_its_wrapper(kind: str, tmp_path: Path) -> None:
    """Before `wrap`, and afterwards where the network was trained in one."""
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


def test_scripted_layers_raise() -> None:
    assert_wrap_fails(torch.jit.script(model()), "torch.jit")
    assert_wrap_fails(torch.jit.trace(model(), torch.zeros(1, 3, 8, 8)), "torch.jit")
    part = model()
    part[4] = torch.jit.script(part[4])
    assert_wrap_fails(part, "'4'.*torch.jit")


@pytest.mark.filterwarnings("ignore")
def test_quantised_layers_raise() -> None:
    assert_wrap_fails(quantization.quantize_dynamic(model(), {nn.Linear}), "'4' is quantised")
    prepared = model().train()
    prepared.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    assert_wrap_fails(quantization.prepare_qat(prepared), "quantised")

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
def test_norms_that_cannot_be_copied_raise(kind: str) -> None:
    """They leave a tensor of the last graph in the layer."""
    old = model()
    getattr(nn.utils, kind)(old[0])
    assert_wrap_fails(old, "parametrizations")


def test_a_model_that_cannot_be_copied_raises() -> None:
    locked = model()
    locked.lock = threading.Lock()
    assert_wrap_fails(locked, "lock")


def test_a_stem_in_a_plain_list_raises() -> None:
    """The list holds the layer itself: its replacement is never called."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)
            self.order = [self.conv]

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.order[0](x).relu().mean((2, 3)))

    assert_wrap_fails(Listed(), "by this name")


def test_a_stem_that_reads_crops_raises() -> None:
    class Crops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            both = self.conv(torch.cat([x, x.flip(-1)])).relu().mean((2, 3))
            return self.head(both).unflatten(0, (2, -1)).mean(0)

    assert_wrap_fails(Crops(), "crops")


class Features(nn.Module):
    """Returns the features beside the logits."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.body, self.head, self.named = nn.Sequential(nn.Conv2d(3, 8, 3), *END), nn.Linear(8, 5), named

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor] | dict[str, Tensor]:
        features = self.body(x)
        logits = self.head(features)
        return {"features": features, "logits": logits} if self.named else (logits, features)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_features_beside_the_logits_are_no_auxiliary_head(named: bool, frozen: bool) -> None:
    own = Features(named).requires_grad_(not frozen)
    net = mixmo.wrap(own)
    assert net.heads == ("head",)
    images = torch.randn(2, 3, 16, 16)
    output = own(images)
    torch.testing.assert_close(net(images), output["logits"] if isinstance(output, dict) else output[0])


def test_the_type_of_an_error_without_message_is_shown() -> None:
    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError

    assert_wrap_fails(Picky(), "NotImplementedError")


def test_networks_wrapped_and_loaded_in_inference_mode_can_be_trained(tmp_path: Path) -> None:
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
