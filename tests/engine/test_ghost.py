"""Ghost batches: one step over several batches is the mean of their steps apart."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from mixmo import UserError, data
from mixmo.engine import Runtime, train
from mixmo.engine.batch import Batches, Draws, Now
from mixmo.engine.distributed import World
from mixmo.engine.initialization import fresh_network
from mixmo.engine.norm import set_ghost
from mixmo.engine.preflight import check_world
from mixmo.mixing.loss import loss
from mixmo.models import Network
from mixmo.recipes import Recipe, named
from mixmo.utils.rng import Stream

GHOST, GHOSTS = 8, 4
RECIPES = {
    "cut-mixmo": named("digits/cut-mixmo").replace(repetition=2),
    "three members": named("digits/cut-mixmo+cutmix").replace(members=3, repetition=4, augmix=True),
    "mimo": named("digits/mimo-repetition").replace(repetition=2),
    "vanilla": named("digits/vanilla"),
}


def test_a_normalisation_sees_ghost_batches() -> None:
    """Output, gradients and running statistics by torch's own layer, batch by batch."""
    x = torch.randn(12, 3, 5, 5, dtype=torch.float64) * 3 + 7
    ghost, apart = nn.Sequential(nn.BatchNorm2d(3)).double(), nn.BatchNorm2d(3).double()
    for layer in (ghost[0], apart):
        nn.init.normal_(layer.weight.data, generator=torch.Generator().manual_seed(0))
    set_ghost(ghost, 4)
    inputs, parts, weights = x.clone().requires_grad_(), x.clone().requires_grad_(), torch.randn_like(x)
    outputs, means, variances = [], [], []
    for part in parts.split(4):
        outputs.append(nn.functional.batch_norm(part, None, None, apart.weight, apart.bias, training=True))
        apart.reset_running_stats()
        apart(part.detach())
        means.append(apart.running_mean.clone())
        variances.append(apart.running_var.clone())
    ours, expected = ghost(inputs), torch.cat(outputs)
    (ours * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(inputs.grad, parts.grad)
    torch.testing.assert_close(ghost[0].weight.grad, apart.weight.grad)
    torch.testing.assert_close(ghost[0].running_mean, torch.stack(means).mean(0))
    torch.testing.assert_close(ghost[0].running_var, torch.stack(variances).mean(0))
    ghost.eval()
    apart.load_state_dict(ghost[0].state_dict())
    torch.testing.assert_close(ghost(x), apart.eval()(x))


@pytest.mark.slow
def test_a_compiled_layer_equals_the_eager_one() -> None:
    """Output, gradients and running statistics."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    set_ghost(net, 4)
    twin, x = copy.deepcopy(net), torch.randn(12, 3, 5, 5)
    expected, ours = net(x), torch.compile(twin, fullgraph=True)(x)
    for output in (expected, ours):
        output.square().sum().backward()
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(twin.state_dict(), net.state_dict())
    for one, two in zip(twin.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-4)


def test_statistics_of_half_precision_are_in_float32() -> None:
    """As torch's own: numbers of 8 bits, but the mean and the variance of them in full."""
    x = (torch.randn(8, 3, 5, 5, generator=torch.Generator().manual_seed(0)) * 3 + 7).bfloat16()
    ghost, own = nn.Sequential(nn.BatchNorm2d(3)), nn.BatchNorm2d(3)
    set_ghost(ghost, 4)
    expected = torch.cat(
        [nn.functional.batch_norm(part, None, None, own.weight, own.bias, training=True) for part in x.split(4)]
    )
    ours = ghost(x)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(ghost[0].running_mean, 0.1 * x.float().mean((0, 2, 3)))
    variances = torch.stack([part.float().var((0, 2, 3)) for part in x.split(4)])
    torch.testing.assert_close(ghost[0].running_var, 0.9 + 0.1 * variances.mean(0))


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(3),
        nn.BatchNorm2d(3, affine=False),
        nn.BatchNorm2d(3, momentum=None),
        nn.BatchNorm2d(3, track_running_stats=False),
    ],
)
def test_ghost_batches_reject_other_normalisations(layer: nn.Module) -> None:
    with pytest.raises(UserError, match="BatchNorm2d"):
        set_ghost(nn.Sequential(nn.BatchNorm2d(3), layer), 4)


def gradients(recipe: Recipe, draws: Draws) -> tuple[Network, list[Tensor]]:
    dataset = data.load("digits")
    net = fresh_network(recipe, dataset)
    mix = Batches(recipe, dataset, dataset.train).mix(draws, Now.at(0.5))
    loss(net(mix), mix).backward()
    return net, [parameter.grad for parameter in net.parameters() if parameter.grad is not None]


def one_of(draws: Draws, number: int) -> Draws:
    """The draws of a ghost batch, as those of a batch of its own."""
    part = slice(GHOST * number, GHOST * (number + 1))
    n = len(draws.unique) // GHOSTS
    few = slice(n * number, n * (number + 1))
    operations = None if draws.augmix is None else draws.augmix[:, few]
    return draws.of(part)._replace(
        unique=draws.unique[few], order=draws.order[:, part] - part.start, same=draws.same[part], augmix=operations
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_step_is_the_mean_of_its_ghost_batches(name: str) -> None:
    """Pairing, patch or linear, masks, statistics and gradients are those of the batches apart."""
    recipe = RECIPES[name].replace(width=1, batch_size=GHOST * GHOSTS, ghost=GHOST)
    dataset = data.load("digits")
    unique = torch.arange(recipe.batch_size // recipe.repetition)
    draws = Batches(recipe, dataset, dataset.train).draw(unique, Stream(0, torch.device("cpu")).at("step", 0))
    net, together = gradients(recipe, draws)
    small = recipe.replace(batch_size=GHOST, ghost=0)
    apart = [gradients(small, one_of(draws, number)) for number in range(GHOSTS)]
    for ours, *theirs in zip(together, *(grads for _, grads in apart), strict=True):
        torch.testing.assert_close(ours, torch.stack(theirs).mean(0), rtol=1e-4, atol=1e-5)
    for ours, *theirs in zip(net.buffers(), *(other.buffers() for other, _ in apart), strict=True):
        torch.testing.assert_close(ours.double(), torch.stack(theirs).double().mean(0), rtol=1e-4, atol=1e-5)


def test_each_ghost_batch_decides_for_itself() -> None:
    """Patch or linear, and which member is inside, once a ghost batch."""
    mixer = named("digits/cut-mixmo").mixer()
    draws = mixer.draw(64, 8, 8, torch.device("cpu"), torch.Generator().manual_seed(0), ghosts=8)
    kinds = draws.batch.unflatten(1, (8, 8))
    assert (kinds == kinds[..., :1]).all()
    assert len(kinds[0, :, 0].unique()) == 8


def test_training_with_ghost_batches(tmp_path: Path) -> None:
    """Two runs agree; the weights are those of an ordinary network, and differ from those without."""
    recipe = named("digits/cut-mixmo").replace(width=1, batch_size=256, ghost=64, epochs=1)
    runtime = Runtime(device="cpu", quiet=True)
    runs = [
        train(chosen, tmp_path / str(number), runtime)
        for number, chosen in enumerate((recipe, recipe, recipe.replace(ghost=0)))
    ]
    losses = [run.read_metrics()[-1]["train"]["loss"] for run in runs]
    assert losses[0] == losses[1] != losses[2]
    plain, ghost = (load_file(runs[number].path / "last.safetensors") for number in (2, 0))
    assert {name: weights.shape for name, weights in plain.items()} == {name: ghost[name].shape for name in ghost}


@pytest.mark.parametrize("name", ["hard-patchup", "puzzle-mix", "gradaug"])
def test_ghost_batches_of_methods_that_work_on_whole_batches(tmp_path: Path, name: str) -> None:
    recipe = named(f"digits/{name}").replace(width=1, batch_size=32)
    losses = []
    for ghost in (0, 8):
        run = train(recipe.replace(ghost=ghost), tmp_path / str(ghost), Runtime(device="cpu", quiet=True), until=2)
        losses.append(json.loads(next((run.path / "checkpoints").glob("*/state.json")).read_text())["meter"][0])
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ghost": 24}, "ghost = 24"),
        ({"ghost": 1}, "multiple"),
        ({"ghost": -8}, "ghost = -8"),
    ],
)
def test_what_ghost_batches_cannot_be(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        named("digits/cut-mixmo").replace(batch_size=64, repetition=2, **changes)


def test_ghost_batches_are_not_cut_by_processes() -> None:
    world = World()
    world.size = 4
    check_world(named("digits/cut-mixmo").replace(batch_size=64, ghost=16), world)
    with pytest.raises(UserError, match="2 ghost batches"):
        check_world(named("digits/cut-mixmo").replace(batch_size=64, ghost=32), world)
