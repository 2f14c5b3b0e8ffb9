"""First convolutions that cut patches, with the mixing block as one matrix product."""

from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import mixmo
from mixmo.mixing.block import mixing_block
from mixmo.surgery import layers
from mixmo.surgery.patches import cut_patches, mixed_patches


def coefficients(kind: str, members: int = 2) -> Tensor:
    """Coefficients of six samples on a grid of 3 x 4 patches."""
    if kind == "linear":
        return torch.rand(members, 6, 1, 1, 1).double().softmax(0)
    owner = torch.randint(members, (6, 1, 3, 4))
    return torch.stack([owner == member for member in range(members)]).double()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["cut", "linear"])
@pytest.mark.parametrize(("members", "size"), [(2, (12, 8)), (3, (14, 9))])  # the latter leave a rest of pixels
def test_patches_are_mixed_as_their_features(kind: str, bias: bool, members: int, size: tuple[int, int]) -> None:
    """Output and gradients as by M convolutions and the mixing block."""
    stems = [nn.Conv2d(3, 5, (4, 2), (4, 2), bias=bias).double() for _ in range(members)]
    images = [torch.randn(6, 3, *size, dtype=torch.float64) for _ in range(members)]
    given = coefficients(kind, members)
    assert cut_patches(stems, images[0], given)
    encoded = [stem(x) for stem, x in zip(stems, images, strict=True)]
    ways = [mixed_patches(stems, images, given), mixing_block(encoded, given)]
    torch.testing.assert_close(*ways)
    parameters, weight = [p for stem in stems for p in stem.parameters()], torch.randn_like(ways[0])
    torch.testing.assert_close(*[torch.autograd.grad((way * weight).sum(), parameters) for way in ways])


@pytest.mark.parametrize(
    "stem",
    [
        lambda: nn.Conv2d(3, 4, 3, 2),
        lambda: nn.Conv2d(3, 4, 2, 2, padding=1),
        lambda: nn.Conv2d(3, 4, 2, 2, dilation=2),
        lambda: nn.Conv2d(3, 3, 2, 2, groups=3),
        lambda: nn.Sequential(nn.Conv2d(3, 4, 2, 2)),
    ],
    ids=["overlapping", "padded", "dilated", "groups", "deep"],
)
def test_other_stems_encode_each_image(stem: type[nn.Module]) -> None:
    assert not cut_patches([stem(), stem()], torch.randn(2, 3, 8, 8), torch.ones(2, 2, 1, 4, 4))


def test_coefficients_of_another_resolution_are_mixed_with_the_features() -> None:
    stems = [nn.Conv2d(3, 4, 2, 2) for _ in range(2)]
    assert not cut_patches(stems, torch.randn(2, 3, 8, 8), torch.ones(2, 2, 1, 8, 8))


@pytest.mark.parametrize("hook", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"])
def test_hooks_of_a_stem_are_called(hook: str) -> None:
    stems = [nn.Conv2d(3, 4, 2, 2) for _ in range(2)]
    getattr(stems[1], f"register_{hook}")(lambda *_: None)
    assert not cut_patches(stems, torch.randn(2, 3, 8, 8), torch.ones(2, 2, 1, 4, 4))


def test_a_forward_of_its_own_is_called() -> None:
    stems = [nn.Conv2d(3, 4, 2, 2) for _ in range(2)]
    stems[1].forward = torch.zeros_like  # type: ignore[method-assign]
    assert not cut_patches(stems, torch.randn(2, 3, 8, 8), torch.ones(2, 2, 1, 4, 4))


@pytest.mark.parametrize("other", [nn.Conv2d(3, 4, 2, 2, bias=False), nn.Conv2d(3, 4, 4, 4)], ids=["bias", "size"])
def test_stems_that_differ_encode_each_image(other: nn.Module) -> None:
    assert not cut_patches([nn.Conv2d(3, 4, 2, 2), other], torch.randn(2, 3, 8, 8), torch.ones(2, 2, 1, 4, 4))


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_the_features_have_the_memory_format_and_type_of_a_convolution(form: torch.memory_format) -> None:
    """So that a backbone may go on as behind its own stem, with `view` for example; under autocast too."""
    stems = [nn.Conv2d(3, 5, 2, 2).to(memory_format=form) for _ in range(2)]
    images = [torch.randn(6, 3, 6, 8) for _ in range(2)]
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = mixed_patches(stems, images, coefficients("cut")), stems[0](images[0])
    assert found.stride() == expected.stride()
    assert found.dtype == expected.dtype


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["test_vit", "test_convnext"])
def test_a_wrapped_network_computes_the_same(name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm")
    net = mixmo.wrap(timm.create_model(name, num_classes=5), members=2).eval()
    side = timm.create_model(name).default_cfg["input_size"][-1]
    mix = mixmo.Mixer("cut", stride=net.stride)(torch.randn(4, 3, side, side), torch.arange(4))
    with monkeypatch.context() as patch:
        patch.setattr(layers, "cut_patches", lambda *_: False)
        expected = net(mix)
    monkeypatch.setattr(layers, "mixed_patches", spy := Mock(side_effect=mixed_patches))
    found = (torch.compile(net, backend="aot_eager") if compiled else net)(mix)
    assert spy.called
    torch.testing.assert_close(found, expected)
