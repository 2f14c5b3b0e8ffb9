"""Which first convolutions the kernel of mixed encodings computes; what it computes is tested with the kernels."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import mixmo
from mixmo.surgery import layers, overlapping
from mixmo.surgery.overlapping import overlapping_windows
from mixmo.surgery.patches import in_format_of

IMAGE, COEFFICIENTS = torch.randn(2, 3, 9, 8), torch.ones(2, 2, 1, 5, 4)


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlapping, "available", lambda _: True)
    monkeypatch.setattr(overlapping, "stem_is_right", lambda _: True)


def stem() -> nn.Conv2d:
    return nn.Conv2d(3, 4, 3, stride=2, padding=1)


def eligible(stems: list[nn.Module], image: Tensor = IMAGE, coefficients: Tensor = COEFFICIENTS) -> bool:
    with torch.autocast("cpu", torch.bfloat16):
        return overlapping_windows(stems, [image, IMAGE], coefficients)


@pytest.mark.parametrize("coefficients", [COEFFICIENTS, torch.ones(2, 2, 1, 1, 1)], ids=["cut", "linear"])
def test_plain_convolutions_are_computed_by_the_kernel(coefficients: Tensor) -> None:
    assert eligible([stem(), stem()], coefficients=coefficients)


def test_half_precision_without_autocast_is_computed_by_the_kernel() -> None:
    stems = [stem().half(), stem().half()]
    assert overlapping_windows(stems, [IMAGE.half()] * 2, COEFFICIENTS)
    assert not overlapping_windows([stem(), stem()], [IMAGE] * 2, COEFFICIENTS)


@pytest.mark.parametrize(
    "other",
    [
        lambda: nn.Conv2d(3, 4, 3, 2, 1, dilation=2),
        lambda: nn.Conv2d(3, 3, 3, 2, 1, groups=3),
        lambda: nn.Conv2d(3, 4, 3, 2, 1, padding_mode="reflect"),
        lambda: nn.Conv2d(3, 4, 3, padding="same"),
        lambda: nn.Conv2d(5, 4, 3, 2, 1),
        lambda: nn.Conv2d(3, 4, 17, 2, 8),
        lambda: nn.Sequential(stem()),
        lambda: stem().eval(),
    ],
    ids=["dilated", "groups", "reflected", "same", "channels", "large", "deep", "eval"],
)
def test_other_stems_encode_each_image(other: Callable[[], nn.Module]) -> None:
    assert not eligible([other(), other()])


def test_stems_that_differ_encode_each_image() -> None:
    assert not eligible([stem(), nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False)])


def test_functional_transforms_are_computed_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "mixed_windows", lambda *_: pytest.fail("custom operators do not support torch.func"))
    model = nn.Sequential(stem(), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    net = mixmo.wrap(model, members=2, size=(3, 9, 8)).train()
    mix = mixmo.Mixer("cut", stride=net.stride)(torch.randn(4, 3, 9, 8), torch.arange(4))

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.func.functional_call(net, parameters, (mix,)).float().square().mean()

    found = torch.func.grad(loss)({name: each.detach() for name, each in net.named_parameters()})
    assert all(each.isfinite().all() for each in found.values())


def test_a_single_member_encodes_its_image() -> None:
    assert not eligible([stem()], coefficients=COEFFICIENTS[:1])


@pytest.mark.parametrize("member", [0, 1])
def test_an_image_that_needs_a_gradient_is_encoded_by_torch(member: int) -> None:
    images = [IMAGE.clone().requires_grad_(m == member) for m in range(2)]
    with torch.autocast("cpu", torch.bfloat16):
        assert not overlapping_windows([stem(), stem()], images, COEFFICIENTS)


def test_coefficients_that_need_a_gradient_are_mixed_with_the_features() -> None:
    assert not eligible([stem(), stem()], coefficients=COEFFICIENTS.clone().requires_grad_())


@pytest.mark.parametrize("shape", [(2, 2, 1, 9, 8), (2, 1, 1, 5, 4), (2, 1, 1, 1, 1)], ids=str)
def test_coefficients_of_another_shape_are_mixed_with_the_features(shape: tuple[int, ...]) -> None:
    assert not eligible([stem(), stem()], coefficients=torch.ones(shape))


def test_images_in_float64_are_encoded_by_torch() -> None:
    assert not eligible([stem().double(), stem().double()], IMAGE.double())


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels", [1, 3])
def test_features_have_the_memory_format_of_a_convolution(channels: int, memory_format: torch.memory_format) -> None:
    layer = nn.Conv2d(channels, 4, 3).to(memory_format=memory_format)  # type: ignore[call-overload]
    features = torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last)
    assert in_format_of(layer, features).stride() == layer(torch.randn(2, channels, 7, 8)).stride()


def test_without_a_gpu_each_image_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not eligible([stem(), stem()])


@pytest.mark.parametrize("training", [True, False])
def test_a_wrapped_network_uses_the_kernel_in_training_only(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def mixed_windows(copies: list[nn.Conv2d], images: list[Tensor], coefficients: Tensor) -> Tensor:
        seen.append(coefficients)
        return copies[0](images[0])  # type: ignore[no-any-return]

    monkeypatch.setattr(layers, "mixed_windows", mixed_windows)
    model = nn.Sequential(stem(), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    net = mixmo.wrap(model, members=2, size=(3, 16, 16)).train(training)
    mix = mixmo.Mixer("cut", stride=net.stride)(torch.randn(4, 3, 16, 16), torch.arange(4))
    with torch.autocast("cpu", torch.bfloat16):
        net(mix)
        net(mix.images[0])
    assert len(seen) == training
