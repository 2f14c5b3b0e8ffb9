"""A few small backbones of other libraries, one per kind of stem and head; all: docs/results/architectures.md."""

from typing import Any

import pytest
import timm
import torch
from torch import nn

import mixmo
from mixmo.mixing.masks import MASKS

TINY = {"img_size": 128, "embed_dim": 48, "depth": 2, "num_heads": 3}
SMALL = (3, 64, 64)

# Name: its options, the stems and the heads that must be found, the size of its images if it does not matter to it.
TIMM: dict[str, tuple[dict[str, Any], list[str], list[str], tuple[int, int, int] | None]] = {
    "test_resnet": ({}, ["conv1.0"], ["fc"], SMALL),
    "test_efficientnet": ({}, ["conv_stem"], ["classifier"], SMALL),
    "test_convnext": ({}, ["stem.0"], ["head.fc"], SMALL),
    "test_mambaout": ({}, ["stem.conv1"], ["head.fc"], SMALL),
    "test_nfnet": ({}, ["stem.conv1"], ["head.fc"], SMALL),  # weight-standardised
    "mobileone_s0": ({}, ["stem.conv_scale.conv", "stem.conv_kxk.0.conv"], ["head.fc"], SMALL),  # branches
    "test_vit": ({"img_size": 128}, ["patch_embed.proj"], ["head"], None),
    "deit_tiny_distilled_patch16_224": (TINY, ["patch_embed.proj"], ["head", "head_dist"], None),
    "naflexvit_base_patch16_gap": (
        {"embed_dim": 48, "depth": 2, "num_heads": 3},
        ["embeds.proj"],
        ["head"],
        (3, 128, 128),
    ),  # dense layer on patches
    "crossvit_tiny_240": (
        {"img_size": 120, "embed_dim": (24, 48), "depth": ((1, 1, 0),)},
        ["patch_embed.0.proj", "patch_embed.1.proj"],  # two scales
        ["head.0", "head.1"],
        None,
    ),
}


def contract(model: nn.Module, net: mixmo.Wrapped, foldable: bool = True) -> None:
    """It starts as the model, trains with every mask, its members become diverse, it folds."""
    images = torch.randn(2, *net.size)
    model.eval()
    net.eval()
    with torch.no_grad():
        expected = model(images)
        scale = expected.abs().max().clamp_min(1)
        assert ((net.each(images) - expected).abs().max() / scale).item() <= 1e-5
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for kind in (*MASKS, "linear", "sum"):
        mix = mixmo.Mixer(kind, p=1.0, stride=net.stride)(images, torch.tensor([0, 1]))
        optimizer.zero_grad()
        mixmo.loss(net(mix), mix).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters() if p.requires_grad), kind
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    net.eval()
    with torch.no_grad():
        logits = net.each(images)
        assert (logits[0] - logits[1]).abs().max() > 1e-6
        if foldable:
            folded = mixmo.fold(net).each(images)
            assert ((folded - logits).abs().max() / logits.abs().max().clamp_min(1)).item() <= 1e-5
        else:
            with pytest.raises(mixmo.UserError, match="use the network as it is"):
                mixmo.fold(net)


@pytest.mark.parametrize("name", TIMM)
def test_timm_models_can_be_wrapped(name: str) -> None:
    options, stems, heads, size = TIMM[name]
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options)
    net = mixmo.wrap(model, size=size)
    assert (list(net.stems), list(net.heads)) == (stems, heads)
    contract(model, net, foldable=name != "test_nfnet")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("squeezenet1_1", {}),  # its head is a convolution with an activation and pooling after it
        ("shufflenet_v2_x0_5", {}),
        ("googlenet", {"head": "fc"}),  # auxiliary heads in training
    ],
)
def test_torchvision_models_can_be_wrapped(name: str, arguments: dict[str, str]) -> None:
    from torchvision import models

    torch.manual_seed(0)
    options = {"init_weights": False} if name == "googlenet" else {}
    model = getattr(models, name)(num_classes=5, **options)
    contract(model, mixmo.wrap(model, size=SMALL, **arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["resnet20_cifar10", "nin_cifar10"])
def test_pytorchcv_models_can_be_wrapped(name: str) -> None:
    from pytorchcv.model_provider import get_model

    torch.manual_seed(0)
    model = get_model(name)
    net = mixmo.wrap(model)
    assert net.size == (3, 32, 32)
    contract(model, net)


def test_transformers_models_can_be_wrapped() -> None:
    """A model that checks its channels, records its batch size and returns an object with logits."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=8
    )
    config.num_labels = 5
    torch.manual_seed(0)
    model = ViTForImageClassification(config).eval()
    net = mixmo.wrap(model).eval()
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(net(images), model(images).logits, atol=1e-5, rtol=0)
    mix = mixmo.Mixer("cut", p=1.0, stride=net.stride)(images, torch.tensor([0, 1]))
    mixmo.loss(net(mix), mix).backward()
    assert net.size == (3, 64, 64)
    assert net.stride == 8
