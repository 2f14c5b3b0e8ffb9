"""Saliency against a gradient by hand; the mixed batch is what its mask says; what a step leaves on the network."""

import copy

import pytest
import torch
from torch import Tensor, nn

from mixmo import UserError
from mixmo.baselines.saliency import SALIENCY
from mixmo.baselines.saliency.gradient import saliency, share
from mixmo.baselines.saliency.puzzle import GRIDS, grow, puzzle_mask, puzzle_mix
from mixmo.data.types import Dataset, Split
from mixmo.engine.batch import Batches
from mixmo.engine.initialization import fresh_network
from mixmo.engine.optimizer import make_optimizer
from mixmo.engine.preflight import check_fit
from mixmo.engine.step import Step
from mixmo.mixing.types import Mix
from mixmo.models import Network, create
from mixmo.recipes import Recipe, named
from mixmo.utils.rng import Stream

STD = torch.tensor([0.25, 0.25, 0.25])


class Linear(nn.Module):
    """A core that only flattens, so that logits are A x + b."""

    def forward(self, features: Tensor, hidden: None = None) -> Tensor:
        return features.flatten(1)


def a_mix(images: Tensor, classes: int) -> Mix:
    n = len(images)
    targets = nn.functional.one_hot(torch.arange(n) % classes, classes).float()
    return Mix(images[None], torch.ones(1, n, 1, 1, 1), targets[None], torch.ones(1, n))


def random_dataset(side: int, channels: int = 3, count: int = 32) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, side, side, channels), dtype=torch.uint8, generator=generator)
    split = Split(images, torch.arange(count) % 10)
    return Dataset("random", split, split, tuple("0123456789"), (0.5,) * channels, (0.25,) * channels)


@pytest.fixture
def net() -> Network:
    torch.manual_seed(0)
    return create("wrn10_1", classes=5, members=1)


def test_saliency_of_a_linear_network_equals_its_formula() -> None:
    torch.manual_seed(0)
    head = nn.Linear(3 * 4 * 4, 5)
    net = Network([nn.Identity()], Linear(), [head], members=1, stride=1)
    images = torch.randn(6, 3, 4, 4)
    mix = a_mix(images, 5)
    found, extra = saliency(net, mix, clean=0.0)
    error = head(images.flatten(1)).softmax(1) - mix.targets[0]  # dL/dlogits
    gradient = (error @ head.weight / 6).view(6, 3, 4, 4)
    torch.testing.assert_close(found, (gradient**2).mean(1).sqrt())
    assert extra is None


def test_saliency_in_eval_mode_leaves_no_trace(net: Network) -> None:
    before = copy.deepcopy(net.state_dict())
    found, _ = saliency(net, a_mix(torch.randn(6, 3, 8, 8), 5), clean=0.0)
    assert found.shape == (6, 8, 8)
    assert not found.requires_grad
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert all(module.training for module in net.modules())


def test_saliency_in_training_mode_updates_the_statistics(net: Network) -> None:
    """Running statistics move as by any training batch; the loss is the clean one, weighted."""
    twin, images = copy.deepcopy(net), torch.randn(6, 3, 8, 8)
    mix = a_mix(images, 5)
    _, extra = saliency(net, mix, clean=0.5)
    assert extra is not None
    logits = twin(images)
    torch.testing.assert_close(extra, 0.5 * nn.functional.cross_entropy(logits, mix.targets[0]))
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value)
    assert all(p.grad is None for p in net.parameters())
    extra.backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize("blocks", GRIDS)
@pytest.mark.parametrize("transport", [0, 4])
def test_images_and_labels_follow_the_mask(blocks: int, transport: int) -> None:
    """Of constant images the mixed pixels are the mask itself, and labels follow its mean, wherever blocks move."""
    generator = torch.Generator().manual_seed(blocks)
    maps, partner = torch.rand(6, 32, 32, generator=generator) ** 4, torch.arange(6).roll(1)
    textured = torch.rand(6, 3, 32, 32, generator=generator)
    mask = puzzle_mask(textured, maps, partner, torch.tensor(0.5), blocks, STD)
    assert mask.shape == (6, blocks, blocks)
    assert set(mask.flatten().tolist()) <= {0.0, 0.5, 1.0}
    plain = torch.arange(6.0)[:, None, None, None].expand(-1, 3, 32, 32)
    mixed, own = puzzle_mix(plain, mask, maps, partner, transport)
    shown = grow(mask, 32)
    torch.testing.assert_close(own, shown.mean((1, 2)))
    expected = shown * torch.arange(6)[:, None, None] + (1 - shown) * partner[:, None, None]
    torch.testing.assert_close(mixed, expected[:, None].expand(-1, 3, -1, -1))


def test_extreme_ratios_keep_one_image() -> None:
    """lambda = 1 keeps nearly all of the own image, lambda = 0 of the partner."""
    maps, partner = torch.ones(4, 16, 16), torch.arange(4).roll(1)
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert puzzle_mask(images, maps, partner, torch.tensor(1.0), 4, STD).mean() == 1
    assert puzzle_mask(images, maps, partner, torch.tensor(0.0), 4, STD).mean() == 0


def test_the_salient_part_is_kept() -> None:
    maps = torch.full((2, 16, 16), 1e-3)
    maps[0, :8, :8] = 1.0
    maps[1, 8:, 8:] = 1.0
    mask = puzzle_mask(torch.zeros(2, 3, 16, 16), maps, torch.tensor([1, 0]), torch.tensor(0.5), 4, STD)
    assert (mask[0, :2, :2] == 1).all()
    assert (mask[0, 2:, 2:] == 0).all()
    assert (mask[1, 2:, 2:] == 1).all()


def test_zero_saliency_gives_finite_shares() -> None:
    assert share(torch.zeros(2, 8, 8), 4).isfinite().all()
    torch.testing.assert_close(share(torch.rand(2, 8, 8), 4).sum((1, 2)), torch.ones(2))


@pytest.mark.parametrize("method", list(SALIENCY))
def test_draws_are_deterministic(method: str) -> None:
    kind = SALIENCY[method]
    grids = kind.fitting(32)
    one, two = (kind.draw(40, grids, 1.0, torch.Generator().manual_seed(3)) for _ in range(2))
    assert one.blocks == two.blocks
    assert torch.equal(one.uniform, two.uniform)
    assert torch.equal(one.gamma, two.gamma)
    assert {kind.draw(40, grids, 1.0, torch.Generator().manual_seed(k)).blocks for k in range(40)} == set(grids)


@pytest.mark.parametrize("method", list(SALIENCY))
@pytest.mark.parametrize(("clean", "precision"), [(0.0, "fp32"), (1.0, "fp32"), (1.0, "bf16")])
def test_training_repeats_for_a_seed(method: str, clean: float, precision: str) -> None:
    dataset = random_dataset(16)
    recipe = named(f"cifar10/{method}").replace(depth=10, width=1, batch_size=8, clean=clean, precision=precision)

    def weights(seed: int) -> Tensor:
        changed = recipe.replace(seed=seed)
        net, batches = fresh_network(recipe, dataset), Batches(changed, dataset, dataset.train)
        optimizer = make_optimizer(net, recipe)
        step = Step(net, optimizer, batches, compiled=False, graphed=False)
        for k in range(2):
            step(batches.draw(torch.arange(8), Stream(seed, torch.device("cpu")).at("step", k)), 0.1, 0.0)
        assert net.core.stages[0][0].bn1.num_batches_tracked == (4 if clean else 2)
        assert step.meter.isfinite().all()
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


@pytest.mark.parametrize("method", list(SALIENCY))
def test_compiled_recipes_run_eagerly(method: str) -> None:
    dataset = random_dataset(16)
    recipe = named(f"cifar10/{method}").replace(depth=10, width=1, batch_size=8)
    net = fresh_network(recipe, dataset)
    optimizer = make_optimizer(net, recipe)
    with pytest.warns(RuntimeWarning, match="saliency"):
        step = Step(net, optimizer, Batches(recipe, dataset, dataset.train), compiled=True, graphed=False)
    assert step.mode == "eager"


def test_recipe_has_the_published_settings() -> None:
    cifar, tiny = named("cifar100/puzzle-mix"), named("tiny-imagenet/puzzle-mix")
    assert (cifar.saliency, cifar.alpha, cifar.clean, cifar.transport, cifar.members) == ("puzzle-mix", 1.0, 0.0, 4, 1)
    assert (tiny.saliency, tiny.alpha, tiny.clean, tiny.transport, tiny.members) == ("puzzle-mix", 1.0, 1.0, 0, 1)


def test_recipes_that_do_not_fit_raise() -> None:
    with pytest.raises(UserError, match="'puzzle-mix'"):
        Recipe(saliency="puzlemix")
    with pytest.raises(UserError, match="members"):
        Recipe(saliency="puzzle-mix")
    with pytest.raises(UserError, match="feature_mixing"):
        Recipe(saliency="puzzle-mix", feature_mixing="patchup", members=1, mask="sum")
    with pytest.raises(UserError, match="clean = -1"):
        named("digits/puzzle-mix").replace(clean=-1.0)
    with pytest.raises(UserError, match="15"):
        check_fit(named("digits/puzzle-mix").replace(batch_size=8), random_dataset(15))
