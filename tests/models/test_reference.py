"""WRN-16-2 with two members against the authors' network, number by number, in float64."""

import re
from zlib import crc32

import numpy as np
import pytest
import torch

import mixmo
from mixmo.engine.optimizer import make_optimizer
from mixmo.models import Network, create
from mixmo.recipes import named

NET = "net/wrn16_2_M2"
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def ours(name: str) -> str:
    """Our name of a parameter of theirs."""
    name = name.replace("list_conv1.", "encoders.").replace("list_fc.", "heads.").replace("shortcut.0.", "shortcut.")
    name = re.sub(r"^layer(\d)", lambda match: f"core.stages.{int(match[1]) - 1}", name)
    return re.sub(r"^bn1", "core.after.0", name)


def set_weights(net: Network, names: list[str]) -> None:
    """The closed form of the reference: w.flat[i] = g cos(0.731 i + crc32(name) % 1000)."""
    parameters = dict(net.named_parameters())
    assert len(names) == len(parameters)
    for name in names:
        parameter = parameters[ours(name)]
        i = torch.arange(parameter.numel(), dtype=torch.float64)
        wave = torch.cos(0.731 * i + crc32(name.encode()) % 1000).view(parameter.shape)
        if parameter.dim() > 1:
            value = (2 / parameter[0].numel()) ** 0.5 * wave
        else:
            value = 0.1 * wave if name.endswith("bias") else 1 + 0.1 * wave
        parameter.data.copy_(value)


@pytest.fixture
def net(reference: dict[str, np.ndarray], float64: None) -> Network:
    net = create("wrn16_2", classes=10, members=2)
    set_weights(net, list(reference[f"{NET}/param_names"]))
    return net


@pytest.fixture
def mix(reference: dict[str, np.ndarray]) -> mixmo.Mix:
    """The reference batch. Its soft targets are multiplied by the loss weights already: ours are then one."""
    images = torch.from_numpy(reference[f"{NET}/x"]).unflatten(1, (2, 3)).transpose(0, 1)
    mask = torch.from_numpy(reference[f"{NET}/mask0"]).double()
    targets = torch.stack([torch.from_numpy(reference[f"{NET}/target_{m}"]) for m in (0, 1)])
    weights = targets.sum(-1)
    return mixmo.Mix(images, torch.stack((mask, 1 - mask)), targets / weights[..., None], weights)


def test_eval_logits_equal_the_reference(net: Network, mix: mixmo.Mix, reference: dict[str, np.ndarray]) -> None:
    """In eval mode the reference was given the first image twice."""
    net.eval()
    logits = net.each(mix.images[0])
    for m in (0, 1):
        torch.testing.assert_close(logits[m], torch.from_numpy(reference[f"{NET}/eval_logits_{m}"]), **EXACT)
    torch.testing.assert_close(net(mix.images[0]), torch.from_numpy(reference[f"{NET}/eval_logits"]), **EXACT)


def test_train_logits_equal_the_reference(net: Network, mix: mixmo.Mix, reference: dict[str, np.ndarray]) -> None:
    for m in (0, 1):
        torch.testing.assert_close(net(mix)[m], torch.from_numpy(reference[f"{NET}/train_logits_{m}"]), **EXACT)


def test_three_sgd_steps_equal_the_reference(net: Network, mix: mixmo.Mix, reference: dict[str, np.ndarray]) -> None:
    """By a recipe's own optimiser. The paper's l2 3e-4, a term of the loss, is its weight decay of 6e-4 everywhere."""
    names = list(reference[f"{NET}/param_names"])
    parameters = dict(net.named_parameters())
    optimizer = make_optimizer(net, named("cifar100/cut-mixmo").replace(batch_size=32))
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        value = mixmo.loss(net(mix), mix)
        penalty = 3e-4 * sum(p.detach().square().sum() for p in net.parameters())
        value.backward()
        losses.append((value + penalty).item())
        if step == 0:
            norms = [(parameters[ours(n)].grad + 6e-4 * parameters[ours(n)]).norm().item() for n in names]
            np.testing.assert_allclose(norms, reference[f"{NET}/grad_norms"], rtol=1e-9)
        optimizer.step()
    np.testing.assert_allclose(losses, reference[f"{NET}/losses"], rtol=1e-9)
    sums = [parameters[ours(n)].sum().item() for n in names]
    np.testing.assert_allclose(sums, reference[f"{NET}/param_sums_after"], rtol=1e-9, atol=1e-9)
    squares = sum(p.square().sum().item() for p in net.parameters())
    np.testing.assert_allclose(squares, reference[f"{NET}/param_sqsum_after"], rtol=1e-9)
    net.eval()
    after = net(mix.images[0])
    torch.testing.assert_close(after, torch.from_numpy(reference[f"{NET}/eval_logits_after"]), **EXACT)
