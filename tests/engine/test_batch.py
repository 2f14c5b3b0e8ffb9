"""Batches of images that are one grey each, the number of their class: what they show is what their targets say."""

import pytest
import torch
from torch import Tensor, nn

from mixmo.data.types import Dataset, Split
from mixmo.engine.batch import Batches, Now
from mixmo.mixing.types import Mix
from mixmo.models.network import Network, Stages
from mixmo.recipes import Recipe, named

CLASSES = torch.arange(10)
GREY = Split(CLASSES.to(torch.uint8)[:, None, None, None].expand(10, 8, 12, 1).contiguous(), CLASSES)
DATASET = Dataset("grey", GREY, GREY, tuple("0123456789"), (0.0,), (1 / 255,))


def batch(recipe: Recipe, seed: int = 0) -> Mix:
    batches = Batches(recipe, DATASET, GREY)
    batches.shapes = [torch.Size((1, 8, 12))] * 2  # of layers that do nothing
    unique = torch.arange(recipe.batch_size // recipe.repetition) % 10
    return batches.mix(batches.draw(unique, torch.Generator().manual_seed(seed)), Now.at(0.5))


def small(method: str) -> Recipe:
    return named(f"digits/{method}").replace(batch_size=60, repetition=1, crop=0, flip=False)


def meant(mix: Mix) -> Tensor:
    """The grey that the targets stand for, (heads, N)."""
    return mix.targets @ CLASSES.float()


@pytest.mark.parametrize("method", ["mixup", "cutmix", "resizemix", "manifold-mixup", "hard-patchup"])
def test_targets_of_single_networks_are_the_mean_of_what_they_see(method: str) -> None:
    """Layers that do nothing answer with the mean of what they were shown, mixed in pixels or in features."""
    net = Network([nn.Identity()], Stages([nn.Identity()] * 3), [nn.Identity()], members=1, stride=1)
    mixes = [batch(small(method).replace(pixel_p=0.7), seed) for seed in range(8)]
    for mix in mixes:
        torch.testing.assert_close(net(mix)[..., 0], meant(mix))
        assert mix.weights.unique().tolist() == [2.0 if method == "hard-patchup" else 1.0]
    pure = torch.cat([mix.targets.amax(-1) for mix in mixes]) == 1
    assert 0 < pure.double().mean() < 0.8
    if mixes[0].feature_mixing is None:  # feature mixing draws once per batch
        assert pure.double().mean().item() == pytest.approx(0.3, abs=0.15)


@pytest.mark.parametrize("changes", [{}, {"members": 3}, {"mask": "linear"}, {"repetition": 4}])
def test_members_count_what_they_see(changes: dict[str, object]) -> None:
    """Under MixMo, a target says what is in the visible part of a member's input."""
    for seed in range(4):
        mix = batch(small("cut-mixmo+cutmix").replace(**changes), seed)
        share = mix.coefficients.expand_as(mix.images)
        seen = share.sum((2, 3, 4)) > 0
        shown = (share * mix.images).sum((2, 3, 4)) / share.sum((2, 3, 4))
        torch.testing.assert_close(shown[seen], meant(mix)[seen], atol=1e-4, rtol=0)
        assert (mix.targets.amax(-1) < 1).any()


@pytest.mark.parametrize(
    ("method", "kept"), [("cut-mixmo+cutmix", True), ("linear-mixmo+cutmix", True), ("cutmix", False)]
)
def test_the_own_image_stays_predominant_under_mixmo(method: str, kept: bool) -> None:
    """Sample and partner swap where lambda' < 1/2; not in single networks, as published."""
    recipe = small(method).replace(pixel_p=1.0)
    batches, unique = Batches(recipe, DATASET, GREY), torch.arange(60) % 10
    draws = batches.draw(unique, torch.Generator().manual_seed(0))
    own_MN = unique[draws.order]
    share_MN = batches.mix(draws, Now.at(0.5)).targets.gather(-1, own_MN[..., None])[..., 0]
    assert (share_MN.min().item() >= 0.5) == kept


def test_a_partner_has_a_crop_of_its_own(digits: Dataset) -> None:
    """Mixup by hand: lambda x_i + (1 - lambda) x_k, either cropped by its own draws."""
    batches = Batches(named("digits/mixup").replace(pixel_p=1.0), digits, digits.train)
    draws = batches.draw(torch.arange(64), torch.Generator().manual_seed(0))
    assert draws.pixel is not None
    assert draws.pixel.partner is not None
    own, partner = (
        batches.images(digits.train, index, crop, None)
        for index, crop in ((draws.order, draws.crop), (draws.pixel.partner, draws.pixel.crop))
    )
    lam = (draws.pixel.gamma[0] / draws.pixel.gamma.sum(0))[..., None, None, None]
    torch.testing.assert_close(batches.mix(draws, Now.at(0.5)).images, lam * own + (1 - lam) * partner)
    assert not torch.equal(draws.crop, draws.pixel.crop)


def test_ratios_of_mixup_are_uniform() -> None:
    """The larger of lambda and 1 - lambda is 3/4 on average, and where an image meets its own class, 1."""
    largest = batch(small("mixup").replace(pixel_p=1.0, batch_size=2000)).targets.amax(-1)
    assert largest.mean().item() == pytest.approx(0.9 * 0.75 + 0.1, abs=0.02)


def test_interpolated_labels_are_those_of_the_mixed_images() -> None:
    mix = batch(small("shared-all"))
    torch.testing.assert_close((mix.coefficients * mix.images).mean((2, 3, 4)).sum(0, keepdim=True), meant(mix))
    assert mix.weights.tolist() == [[pytest.approx(1)] * 60]


def test_cutout_hides_and_keeps_the_label() -> None:
    mix = batch(small("cutout").replace(pixel_p=1.0))
    grey = mix.images.flatten(2).round()
    assert ((grey == 0) | (grey == mix.targets[..., None])).all()
    assert (grey[:, mix.targets[0] > 0] == 0).any(2).all()


def test_copies_share_the_operations_of_augmix(digits: Dataset) -> None:
    """Those of one sample, within a member; other members and samples have their own."""
    recipe = small("cut-mixmo+augmix").replace(repetition=4)
    batches = Batches(recipe, digits, digits.train)
    mix = batches.mix(batches.draw(torch.arange(15), torch.Generator().manual_seed(0)), Now.at(0.5))
    kinds = [member.flatten(1).unique(dim=0) for member in mix.images]
    assert [len(kind) for kind in kinds] == [15, 15]
    assert len(torch.cat(kinds).unique(dim=0)) > 15


def test_fadeout_ends_as_plain_pooling() -> None:
    """Unmixing weights are the masks at the start of training and ones at its end."""
    recipe = small("cut-mixmo").replace(unmix="fadeout", p=1.0)
    batches = Batches(recipe, DATASET, GREY)
    draws = batches.draw(torch.arange(60) % 10, torch.Generator().manual_seed(0))
    first, last = (batches.mix(draws, Now.at(1.0, progress)) for progress in (0.0, 1.0))
    assert first.visible is not None
    assert last.visible is not None
    assert torch.equal(first.visible, first.coefficients)
    assert set(first.visible.unique().tolist()) == {0.0, 1.0}
    assert last.visible.eq(1).all()
    masked = batches.recipe.replace(unmix="mask")
    assert torch.equal(Batches(masked, DATASET, GREY).mix(draws, Now.at(1.0, 1.0)).visible, first.coefficients)


def test_ratios_start_at_almost_one_image() -> None:
    recipe = small("linear-mixmo").replace(curriculum="ratio", batch_size=600)
    batches = Batches(recipe, DATASET, GREY)
    draws = batches.draw(torch.arange(600) % 10, torch.Generator().manual_seed(0))
    largest = [batches.mix(draws, Now.at(0.0, progress)).coefficients.amax(0).mean() for progress in (0, 0.25, 0.5, 1)]
    assert largest[0] > 0.9 > largest[1] > largest[2] == largest[3]
    plain = Batches(recipe.replace(curriculum="none"), DATASET, GREY).mix(draws, Now.at(0.0))
    torch.testing.assert_close(plain.coefficients.amax(0).mean(), largest[3])


def test_input_repetition_falls_over_the_first_half() -> None:
    recipe = small("mimo").replace(curriculum="repetition", rho=0.2, batch_size=600)
    batches = Batches(recipe, DATASET, GREY)
    draws = batches.draw(torch.arange(600) % 10, torch.Generator().manual_seed(0))
    for progress, share in ((0.0, 1.0), (0.25, 0.5), (0.5, 0.2), (1.0, 0.2)):
        mix = batches.mix(draws, Now.at(0.0, progress))
        same = (mix.targets == mix.targets[:1]).all(0).double().mean().item()
        assert same == pytest.approx(share + (1 - share) * 0.1, abs=0.05)  # one in ten pairs is of one class by chance
