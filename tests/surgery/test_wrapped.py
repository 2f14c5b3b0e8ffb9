"""A wrapped model whose layers were replaced afterwards raises a UserError where it is used."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import mixmo

IMAGES, LABELS = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.arange(4)


def wrapped() -> mixmo.Wrapped:
    stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    return mixmo.wrap(nn.Sequential(stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)))


def trained(net: mixmo.Wrapped) -> None:
    mix = mixmo.Mixer()(IMAGES, LABELS)
    mixmo.loss(net(mix), mix).backward()


USES: dict[str, Callable[[mixmo.Wrapped], object]] = {
    "train": trained,
    "fold": mixmo.fold,
    "members": lambda net: mixmo.convert(net, members=3),
}


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_a_replaced_stem_raises(use: Callable[[mixmo.Wrapped], object]) -> None:
    net = wrapped()
    net.backbone[0][0] = nn.Conv2d(3, 8, 3)
    with pytest.raises(mixmo.UserError, match="Conv2d"):
        use(net)
    net.backbone[0] = nn.Conv2d(3, 8, 3)
    with pytest.raises(mixmo.UserError, match="removed"):
        use(net)


@pytest.mark.parametrize(
    "use",
    [trained, lambda net: mixmo.predict(net, IMAGES), lambda net: mixmo.convert(net, classes=3)],
    ids=["train", "predict", "classes"],
)
def test_a_replaced_head_raises(use: Callable[[mixmo.Wrapped], object]) -> None:
    net = wrapped()
    net.backbone[3] = nn.Linear(8, 3)
    with pytest.raises(mixmo.UserError, match="Linear"):
        use(net)


def test_outputs_of_another_shape_raise() -> None:
    net = wrapped()
    net.backbone.append(nn.Linear(10, 7))
    with pytest.raises(mixmo.UserError, match="2 heads of 5 classes"):
        trained(net)


def test_a_compiled_stem_raises_and_other_compiled_layers_work() -> None:
    """Around the stem, the other members' images would be lost silently."""
    net = wrapped().eval()
    mix = mixmo.Mixer()(IMAGES, LABELS)
    expected = net(mix)
    net.backbone[3] = torch.compile(net.backbone[3], backend="eager")
    torch.testing.assert_close(net(mix), expected)
    net.backbone[0][0] = torch.compile(net.backbone[0][0], backend="eager")
    with pytest.raises(mixmo.UserError, match="OptimizedModule"):
        net(mix)


def test_a_network_is_taken_out_of_a_module_that_holds_it() -> None:
    """As timm's averages do."""

    class Average(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    net = wrapped()
    assert torch.equal(mixmo.predict(Average(net), IMAGES).logits, mixmo.predict(net, IMAGES).logits)
    assert mixmo.fold(Average(net)).members == 1
