"""Models that run differently in training: with activation checkpointing, or with batches that they divide."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

import mixmo


class Model(nn.Module):
    """A stem and a body, each of them with or without activation checkpointing."""

    def __init__(self, where: str, reentrant: bool) -> None:
        super().__init__()
        self.where, self.reentrant = where, reentrant
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU())
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        for name in ("stem", "body"):
            part = getattr(self, name)
            x = checkpoint(part, x, use_reentrant=self.reentrant) if name in self.where else part(x)
        return self.head(x.mean((2, 3)))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("stem", [None, "stem.0"])
def test_checkpointing_the_stem_raises(reentrant: bool, stem: str | None):
    with pytest.raises(mixmo.UserError, match=r"stem.0.*checkpoint"):
        mixmo.wrap(Model("stem, body", reentrant), stem=stem)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_behind_the_stem_gives_the_same_gradients(reentrant: bool):
    gradients = []
    torch.manual_seed(0)
    weights = Model("", reentrant).state_dict()
    for where in ("", "body"):
        model = Model(where, reentrant)
        model.load_state_dict(weights)
        torch.manual_seed(1)
        net = mixmo.wrap(model)
        images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(2))
        mix = mixmo.Mixer()(images, torch.arange(4), generator=torch.Generator().manual_seed(3))
        mixmo.loss(net(mix), mix).backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(again, plain)


def trained(net: nn.Module) -> list[Tensor | None]:
    """The gradients of a step; with those of the images, without which a reentrant checkpoint does nothing."""
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
    mix = mixmo.Mixer()(images, torch.arange(4), generator=torch.Generator().manual_seed(3))
    mixmo.loss(net(mix), mix).backward()
    return [parameter.grad for parameter in net.parameters()]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_the_stem_after_wrap_raises(reentrant: bool):
    net = mixmo.wrap(Model("body", reentrant))
    net.backbone.where = "stem, body"
    with pytest.raises(mixmo.UserError, match="checkpoint"):
        trained(net)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("mixed", [True, False])
def test_checkpointing_the_whole_network_gives_the_same_gradients(reentrant: bool, mixed: bool):
    """The network itself gives its stem the images again."""
    torch.manual_seed(0)
    net = mixmo.wrap(Model("", reentrant))
    gradients = []
    for around in (False, True):
        images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
        mix = mixmo.Mixer()(images, torch.arange(4), generator=torch.Generator().manual_seed(3))
        call = net.read if mixed else net.each
        given = (mix.images, mix.coefficients) if mixed else (images,)
        logits = checkpoint(call, *given, use_reentrant=reentrant) if around else call(*given)
        net.zero_grad()
        logits.square().sum().backward()
        gradients.append([images.grad, *(parameter.grad for parameter in net.parameters())])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(again, plain)


def test_checkpoint_wrappers_behind_the_stem_give_the_same_gradients():
    """As torch's `apply_activation_checkpointing` does; around the stem, it would keep the images from it."""
    torch.manual_seed(0)
    net = mixmo.wrap(Model("", False))
    plain = trained(net)
    net.zero_grad()
    stem, body = net.backbone.stem[0], net.backbone.body
    net.backbone.body = checkpoint_wrapper(body)
    for again, gradient in zip(trained(net), plain, strict=True):
        torch.testing.assert_close(again, gradient)
    net.backbone.stem[0] = checkpoint_wrapper(stem)
    with pytest.raises(mixmo.UserError, match="CheckpointWrapper"):
        trained(net)


class Ghosts(nn.Module):
    """Normalises groups of images in training."""

    def __init__(self, each: int) -> None:
        super().__init__()
        self.each = each
        self.stem, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        groups = x.unflatten(0, (-1, self.each)) if self.training else x[None]
        return self.head(torch.cat([self.norm(group) for group in groups]).mean((2, 3)))


def test_a_model_that_divides_its_batches_in_training_can_be_wrapped() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = mixmo.wrap(Ghosts(4), members=2).train()
    mix = mixmo.Mixer("cut", stride=net.stride)(torch.randn(8, *net.size), torch.arange(8) % 5)
    assert net(mix).shape == (2, 8, 5)


def test_a_model_that_fails_on_trial_images_in_training_is_wrapped_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"failed on random images in training mode \(.*48.*\).* is not known"):
        net = mixmo.wrap(Ghosts(48), members=2).train()
    mix = mixmo.Mixer("cut", stride=net.stride)(torch.randn(48, *net.size), torch.arange(48) % 5)
    assert net(mix).shape == (2, 48, 5)


def test_synchronised_normalisation_can_be_wrapped_while_processes_are_connected(tmp_path: Path) -> None:
    """As a user does who wraps a model in a distributed program, before it moves to the GPU."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.SyncBatchNorm(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    )
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            net = mixmo.wrap(model, members=2)
    finally:
        torch.distributed.destroy_process_group()
    assert all(layer.training for layer in net.modules())
