"""A folded network predicts the same with one encoder; networks that are not linear raise a UserError."""

import copy

import pytest
import torch
from torch import Tensor, nn

import mixmo
from mixmo.models import parameters


def convolutional(stem: nn.Module | None = None) -> nn.Module:
    stem = stem or nn.Conv2d(3, 8, 3, 2, 1)
    return nn.Sequential(stem, nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


class Tripled(nn.Conv2d):
    """Not linear in its weights."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight**3, self.bias)


def trained(net: mixmo.Ensemble) -> mixmo.Ensemble:
    """As training would leave it: every parameter and statistic another."""
    torch.manual_seed(0)
    with torch.no_grad():
        for value in [*net.parameters(), *net.buffers()]:
            if value.is_floating_point() and value.numel():
                value.add_(0.1 * torch.rand_like(value))
    return net.eval()


NETWORKS = {
    "network": lambda m: mixmo.create("wrn10_1", 5, members=m),
    "shared encoder": lambda m: mixmo.create("wrn10_1", 5, members=m, encoders=1),
    "shared head": lambda m: mixmo.create("wrn10_1", 5, members=m, heads=1),
    "wrapped": lambda m: mixmo.wrap(convolutional(), members=m),
    "wrapped network": lambda m: mixmo.wrap(mixmo.create("wrn10_1", 5, members=1), members=m),
}


@pytest.mark.parametrize("members", [1, 2, 4])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_folded_network_predicts_the_same(name: str, members: int) -> None:
    net = trained(NETWORKS[name](members))
    images = torch.randn(4, 3, 32, 32)
    before = copy.deepcopy(net.state_dict())
    folded = mixmo.fold(net)
    assert type(folded) is type(net)
    assert folded.members == 1
    assert folded.num_heads == net.num_heads
    assert not folded.training
    torch.testing.assert_close(folded.each(images), net.each(images), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(folded(images), net(images), atol=1e-5, rtol=1e-5)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    twice = mixmo.fold(folded)
    torch.testing.assert_close(twice.each(images), folded.each(images))
    assert twice.state_dict().keys() == folded.state_dict().keys()


def test_a_folded_network_has_the_parameters_of_a_plain_one_with_more_heads() -> None:
    model = convolutional()
    head = parameters(model[-1])
    assert parameters(mixmo.fold(mixmo.wrap(model, 3))) == parameters(model) + 2 * head
    names = set(mixmo.fold(mixmo.wrap(model, 3)).state_dict())
    assert {"backbone.0.weight", "backbone.0.bias", "backbone.5.copies.2.weight"} <= names


def test_training_a_folded_network_raises() -> None:
    folded = mixmo.fold(mixmo.wrap(convolutional()))
    with pytest.raises(mixmo.UserError, match="folded"):
        folded.read(torch.zeros(2, 1, 3, 16, 16))


def test_encoders_that_are_not_linear_raise_and_stay_usable() -> None:
    net = trained(mixmo.wrap(convolutional(Tripled(3, 8, 3))))
    with pytest.raises(mixmo.UserError, match="linear"):
        mixmo.fold(net)
    assert net(torch.randn(2, 3, 16, 16)).isfinite().all()
    own = mixmo.create("wrn10_1", 5, members=2)
    own.encoders = nn.ModuleList([nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Tanh()) for _ in range(2)])
    with pytest.raises(mixmo.UserError, match="differ"):
        mixmo.fold(own)


def test_concatenated_encodings_raise() -> None:
    with pytest.raises(mixmo.UserError, match="concatenated"):
        mixmo.fold(mixmo.create("wrn10_1", 5, members=2, concat=True))


def test_a_plain_model_raises() -> None:
    with pytest.raises(mixmo.UserError, match="Sequential"):
        mixmo.fold(convolutional(nn.Conv2d(3, 8, 3)))


def test_a_network_that_diverged_is_not_blamed_for_its_encoders() -> None:
    net = mixmo.create("wrn10_1", classes=5, members=2)
    next(iter(net.heads)).weight.data.fill_(float("nan"))
    with pytest.raises(mixmo.UserError, match="outputs NaN or infinite values; check whether its training diverged"):
        mixmo.fold(net)
