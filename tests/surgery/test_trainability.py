"""Models that run differently in training: with activation checkpointing, or with batches that they divide."""

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
    """Normalises groups of four images in training."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        groups = x.unflatten(0, (-1, 4)) if self.training else x[None]
        return self.head(torch.cat([self.norm(group) for group in groups]).mean((2, 3)))


def test_a_model_that_divides_its_batches_in_training_can_be_wrapped() -> None:
    net = mixmo.wrap(Ghosts(), members=2).train()
    mix = mixmo.Mixer("cut", stride=net.stride)(torch.randn(8, *net.size), torch.arange(8) % 5)
    assert net(mix).shape == (2, 8, 5)
