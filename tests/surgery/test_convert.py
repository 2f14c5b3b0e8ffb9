"""Converting to other members or classes keeps what was trained."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import mixmo
from helpers import Standardised


def wrapped(members: int) -> mixmo.Ensemble:
    stem = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU()]
    return mixmo.wrap(nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)), members)


def own(members: int) -> mixmo.Ensemble:
    return mixmo.create("wrn10_1", 5, members)


def trained(net: mixmo.Ensemble) -> mixmo.Ensemble:
    torch.manual_seed(0)
    with torch.no_grad():
        for value in net.parameters():
            value.add_(0.1 * torch.randn_like(value))
    return net.eval()


@pytest.mark.parametrize("after", [1, 2, 3, 5])
@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("make", [own, wrapped])
def test_other_members_predict_as_before(make: Callable[[int], mixmo.Ensemble], before: int, after: int) -> None:
    """Head m predicts as head m modulo M did; the network trains and folds as any other."""
    net, images = trained(make(before)), torch.randn(4, 3, 16, 16)
    other = mixmo.convert(net, members=after)
    assert (other.members, other.num_heads) == (after, after)
    expected = net.each(images)[torch.arange(after) % before]
    torch.testing.assert_close(other.each(images), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mixmo.fold(other).each(images), expected, atol=1e-5, rtol=1e-5)
    mix = mixmo.Mixer("cut", members=after)(images, torch.arange(4))
    mixmo.loss(other.train()(mix), mix).backward()
    assert all(p.grad is not None for p in other.parameters())
    assert net.members == before


@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 3), (2, 4)])
def test_a_stem_that_is_not_linear_is_perturbed(before: int, after: int) -> None:
    """Also where one member hides that outputs are averaged."""
    torch.manual_seed(0)
    model = nn.Sequential(Standardised(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    net, images = mixmo.wrap(model.eval(), before), torch.randn(4, 3, 16, 16)
    other = mixmo.convert(net, members=after)
    torch.testing.assert_close(other.each(images), model(images).expand(after, -1, -1), atol=1e-4, rtol=1e-4)
    stems = [layer.weight for layer in other.backbone[0].copies]
    assert all(not torch.equal(stems[m], stems[k]) for m in range(after) for k in range(m))


@pytest.mark.parametrize("make", [own, wrapped])
def test_existing_members_keep_their_deviations(make: Callable[[int], mixmo.Ensemble]) -> None:
    """An encoder's deviation from the mean of its network is that of the member it continues, up to the new mean."""
    net = trained(make(2))
    three = mixmo.convert(net, members=3)

    def weights(ensemble: mixmo.Ensemble) -> torch.Tensor:
        layers = ensemble.encoders if isinstance(ensemble, mixmo.Network) else ensemble.backbone[0].copies
        return torch.stack([layer.weight for layer in layers])

    before, after = weights(net), weights(three)
    torch.testing.assert_close(after.sum(0), before.sum(0))
    torch.testing.assert_close(after[0] - after[1], before[0] - before[1])
    assert (after[2] - after[0]).abs().max() > 0.01 * after[0].abs().max()


@pytest.mark.parametrize("make", [own, wrapped])
def test_other_classes_keep_the_body_and_draw_new_heads(make: Callable[[int], mixmo.Ensemble]) -> None:
    """New heads differ from each other."""
    net, images = trained(make(2)), torch.randn(4, 3, 16, 16)
    other = mixmo.convert(net, classes=20)
    logits = other.each(images)
    assert logits.shape == (2, 4, 20)
    assert not torch.allclose(logits[0], logits[1])
    old, new = net.state_dict(), other.state_dict()
    assert [key for key in old if old[key].shape == new[key].shape and torch.equal(old[key], new[key])] == [
        key for key in old if "head" not in key and "backbone.5" not in key
    ]
    assert mixmo.convert(net, members=3, classes=7).each(images).shape == (3, 4, 7)


def test_a_new_convolutional_head_has_the_options_of_the_old_one() -> None:
    head = nn.Conv2d(8, 5, 3, padding=2, dilation=2, padding_mode="reflect", bias=False)
    net = mixmo.wrap(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), head, nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    new = mixmo.convert(net, classes=7).heads_at("2").copies[1]
    assert new.extra_repr() == head.extra_repr().replace("8, 5", "8, 7")


def test_shared_parts_stay_shared() -> None:
    net, images = trained(mixmo.create("wrn10_1", 5, members=2, encoders=1)), torch.randn(4, 3, 16, 16)
    four = mixmo.convert(net, members=4)
    assert len(four.encoders) == 1
    torch.testing.assert_close(four.each(images)[2], net.each(images)[0])
    net = mixmo.create("wrn10_1", 5, members=2, heads=1)
    assert mixmo.convert(net, members=3).num_heads == 1


def test_wrong_arguments_raise() -> None:
    net = wrapped(2)
    for given in ({"members": 0}, {"members": "3"}, {"classes": 1}, {"diversity": 2}):
        with pytest.raises(mixmo.UserError, match=next(iter(given))):
            mixmo.convert(net, **given)  # type: ignore[arg-type]
    for fixed in (mixmo.fold(net), mixmo.create("wrn10_1", 5, members=2, concat=True)):
        with pytest.raises(mixmo.UserError, match="fixed"):
            mixmo.convert(fixed, members=3)
    assert mixmo.convert(mixmo.fold(net), classes=2).each(torch.zeros(1, 3, 16, 16)).shape == (2, 1, 2)
    head = nn.Conv2d(8, 4, 1, groups=2)
    grouped = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), head, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(mixmo.UserError, match="Conv2d"):
        mixmo.convert(mixmo.wrap(grouped), classes=8)


def test_stems_that_are_not_linear_are_multiplied() -> None:
    """They cannot be shared out: each becomes as many as the others."""
    stem = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 3))
    model = nn.Sequential(stem, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    net, images = mixmo.wrap(model, 2), torch.randn(4, 3, 16, 16)
    four = mixmo.convert(net, members=4)
    torch.testing.assert_close(four.each(images), model(images).expand(4, -1, -1), atol=1e-4, rtol=1e-3)
    weights = [copy.weight for copy in four.encoders_at("0").copies]
    distances = [(weight - origin.weight).norm() for weight in weights for origin in net.encoders_at("0").copies]
    assert torch.stack(distances).view(4, 2).argmin(1).tolist() == [0, 1, 0, 1]
    with pytest.raises(mixmo.UserError, match="multiple"):
        mixmo.convert(net, members=3)


def test_scores_and_calibration_are_dropped_and_preparation_is_kept() -> None:
    """Class names are kept if the classes stay."""
    net, prepared = wrapped(2), mixmo.About((3, 32, 32), (0.5,) * 3, (0.2,) * 3, resize=40)
    named = replace(prepared, classes=tuple("abcde"))
    net.about = replace(named, dataset="birds", scores={"top1": 0.9}, calibration=mixmo.Calibration(1.5))
    assert mixmo.convert(net, members=3).about == named
    assert mixmo.convert(net, classes=7).about == prepared
    assert net.about.calibration is not None
    assert mixmo.convert(wrapped(2), members=3).about is None


def test_a_model_that_depends_on_its_classes_raises() -> None:
    class Counts(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).view(-1, 5)

    model = Counts(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    with pytest.raises(mixmo.UserError, match="7 classes"):
        mixmo.convert(mixmo.wrap(model), classes=7)
