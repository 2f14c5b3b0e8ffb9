"""Unmixing of wrapped backbones: each head pools the last feature maps under its own mask."""

import pytest
import torch
from torch import Tensor, nn

import mixmo
from mixmo.mixing.block import unmix
from mixmo.models import create
from mixmo.surgery.backbones import wrap_backbone
from mixmo.surgery.unmixing import enable_unmixing

pytest.importorskip("timm")
pytest.importorskip("torchvision")

POOLS = {
    "timm/test_resnet": "global_pool",
    "timm/test_convnext": "head.global_pool",  # with a norm between pooling and head
    "timm/test_efficientnet": "global_pool",
    "timm/swin_tiny_patch4_window7_224": "head.global_pool",  # NHWC
    "torchvision/resnet18": "avgpool",
    "torchvision/mobilenet_v3_small": "avgpool",  # the same module in squeeze and excitation; a dense layer after it
}
SIZE = (3, 64, 64)


def inputs(members: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    visible = torch.rand(members, 4, 1, 16, 16, generator=generator).round()
    return torch.randn(members, 4, *SIZE, generator=generator), visible


def difference(a: Tensor, b: Tensor) -> float:
    """Relative to the logits, which are tiny in some untrained networks."""
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("name", POOLS)
def test_heads_pool_under_their_own_masks(name: str) -> None:
    net = wrap_backbone(name, 5, SIZE, members=2).eval()
    images, visible = inputs()
    with torch.no_grad():
        plain = net.read(images)
        names = list(net.state_dict())
        enable_unmixing(net)
        enable_unmixing(net)
        assert net.pool == POOLS[name]
        assert list(net.state_dict()) == names
        assert torch.equal(net.read(images), plain)
        for even in (torch.ones(2, 4, 1, 1, 1), torch.ones(2, 4, 1, 9, 9)):
            assert difference(net.read(images, visible=even), plain) < 1e-4
        unmixed = net.read(images, visible=visible)
        assert unmixed.shape == plain.shape
        for m in range(2):  # one head at a time: all heads pool under its mask
            alone = net.read(images, visible=visible[m].expand(2, -1, -1, -1, -1))
            assert difference(unmixed[m], alone[m]) < 1e-4
        assert difference(unmixed, plain) > 1e-3


def test_unmixing_is_the_formula_of_the_maps() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    net = mixmo.wrap(model, members=3, size=SIZE)
    enable_unmixing(net)
    images, visible = inputs(3)
    encoded = sum(copy(x) for copy, x in zip(net.encoders_at("0").copies, images, strict=True))
    pooled = unmix(encoded.relu(), visible)
    expected = [head(x) for head, x in zip(net.heads_at("4").copies, pooled, strict=True)]
    torch.testing.assert_close(net.read(images, visible=visible), torch.stack(expected))


def test_unmixing_compiles_to_one_graph_and_trains() -> None:
    net = wrap_backbone("timm/test_resnet", 5, SIZE, members=2)
    enable_unmixing(net)
    images, visible = inputs()

    def loss(images: Tensor, visible: Tensor) -> Tensor:
        return net.read(images, visible, visible=visible).square().sum()

    torch.compile(loss, backend="eager", fullgraph=True)(images, visible).backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_folding_converting_and_saving_are_as_before(tmp_path: object) -> None:
    net = wrap_backbone("timm/test_resnet", 5, SIZE, members=2).eval()
    x, plain = inputs()[0][0], mixmo.fold(net)
    enable_unmixing(net)
    torch.testing.assert_close(mixmo.fold(net).each(x), plain.each(x))
    images, visible = inputs(3)
    three = mixmo.convert(net, members=3, classes=7)
    assert three.read(images, visible=visible).shape == (3, 4, 7)
    again = mixmo.from_pretrained(mixmo.save_pretrained(net, f"{tmp_path}/saved"))
    torch.testing.assert_close(again.each(x), net.each(x))


@pytest.mark.parametrize(
    ("name", "size"),
    [("timm/test_vit", (3, 32, 32)), ("torchvision/squeezenet1_1", SIZE), ("torchvision/resnet18", (3, 32, 32))],
    ids=["class token", "heads before the pooling", "maps of one position"],
)
def test_backbones_that_cannot_unmix_raise(name: str, size: tuple[int, int, int]) -> None:
    net = wrap_backbone(name, 5, size, members=2).eval()
    images = torch.randn(2, 3, *size)
    plain = net.read(images)
    with pytest.raises(mixmo.UserError, match=r"cannot unmix.*set unmix = none"):
        enable_unmixing(net)
    assert torch.equal(net.read(images), plain)
    with pytest.raises(mixmo.UserError, match="enable_unmixing"):
        net.read(images, visible=torch.ones(2, 3, 1, 1, 1))


def test_networks_of_create_need_a_head_per_member() -> None:
    enable_unmixing(create("wrn10_1", 10, 2))
    with pytest.raises(mixmo.UserError, match="unmix"):
        enable_unmixing(create("wrn10_1", 10, 2, heads=1))
