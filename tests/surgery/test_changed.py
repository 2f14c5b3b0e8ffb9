"""A wrapped model whose parts were changed afterwards: what cannot work any more says so, wherever it is met."""

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
def test_another_stem(use: Callable[[mixmo.Wrapped], object]) -> None:
    net = wrapped()
    net.backbone[0][0] = nn.Conv2d(3, 8, 3)
    with pytest.raises(mixmo.UserError, match=r"the model's '0.0' has become a Conv2d since mixmo.wrap; change the"):
        use(net)
    net.backbone[0] = nn.Conv2d(3, 8, 3)
    with pytest.raises(mixmo.UserError, match=r"the model's '0.0' is no longer there since mixmo.wrap; change the"):
        use(net)


@pytest.mark.parametrize(
    "use",
    [trained, lambda net: mixmo.predict(net, IMAGES), lambda net: mixmo.convert(net, classes=3)],
    ids=["train", "predict", "classes"],
)
def test_another_head(use: Callable[[mixmo.Wrapped], object]) -> None:
    net = wrapped()
    net.backbone[3] = nn.Linear(8, 3)
    with pytest.raises(mixmo.UserError, match=r"the model's '3' has become a Linear since .* other classes$"):
        use(net)


def test_answers_that_do_not_fit() -> None:
    net = wrapped()
    net.backbone.append(nn.Linear(10, 7))
    with pytest.raises(
        mixmo.UserError, match=r"answers 4 images with \(4, 7\), which is not 2 heads of 5 classes each"
    ):
        trained(net)


def test_a_part_compiled_by_itself() -> None:
    """Around the stem its images would be lost without a word; behind it, it computes the same."""
    net = wrapped().eval()
    mix = mixmo.Mixer()(IMAGES, LABELS)
    expected = net(mix)
    net.backbone[3] = torch.compile(net.backbone[3], backend="eager")
    torch.testing.assert_close(net(mix), expected)
    net.backbone[0][0] = torch.compile(net.backbone[0][0], backend="eager")
    with pytest.raises(mixmo.UserError, match=r"the model's '0.0' has become a OptimizedModule since mixmo.wrap"):
        net(mix)


def test_what_holds_a_network_as_its_module() -> None:
    """As timm's averages do."""

    class Average(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    net = wrapped()
    assert torch.equal(mixmo.predict(Average(net), IMAGES).logits, mixmo.predict(net, IMAGES).logits)
    assert mixmo.fold(Average(net)).members == 1
