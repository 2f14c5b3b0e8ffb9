"""Batch normalisation and ReLU as one function, with sums computed by torch, as on any device."""

import copy
import math
import sys
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from mixmo.engine.norm import set_ghost
from mixmo.kernels.norm_relu import norm_relu, norm_relu_gradients, norm_statistics, set_norm_relu, sums_are_right

channel_sums = pytest.importorskip("mixmo.kernels.channel_sums", reason="needs Triton", exc_type=ImportError)
SIZE = (8, 16, 4, 4)


@pytest.fixture(autouse=True)
def small_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_sums, "LEAST", 0)


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for a compiled step."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


def norms(ghost: int) -> tuple[nn.Module, nn.Module]:
    """Return a normalisation, and one of the same parameters that takes the kernels."""
    plain = nn.Sequential(nn.BatchNorm2d(SIZE[1]))
    nn.init.normal_(plain[0].weight)
    nn.init.normal_(plain[0].bias)
    if ghost:
        set_ghost(plain, ghost)
    ours = copy.deepcopy(plain)
    set_norm_relu(ours[0], SIZE)
    assert "summed" in vars(ours[0])
    return plain[0], ours[0]


def maps(mean: float = 0.5) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(SIZE, generator=generator) + mean).bfloat16().to(memory_format=torch.channels_last)


@pytest.mark.parametrize("ghost", [0, 4])
def test_norm_relu_is_relu_of_the_normalisation_with_its_gradients(ghost: int) -> None:
    plain, ours = norms(ghost)
    function = torch.compile(norm_relu, backend="aot_eager", fullgraph=True)
    x, again, dy = maps().requires_grad_(), maps().requires_grad_(), maps(0.0)
    expected, found = torch.relu(plain(x)), function(ours, again)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected)
    expected.backward(dy)
    found.backward(dy)
    torch.testing.assert_close(again.grad, x.grad, rtol=2e-2, atol=2e-2)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, plain.get_parameter(name).grad, rtol=1e-2, atol=2e-2)
    for name, buffer in ours.named_buffers():
        torch.testing.assert_close(buffer, plain.get_buffer(name))


@pytest.mark.usefixtures("compiling")
def test_the_gradient_is_that_of_the_formula_in_float64() -> None:
    """Of the function itself: the sums are those of torch in float32, so to their precision."""
    _, ours = norms(4)
    x, dy = maps().requires_grad_(), maps(0.0)
    norm_relu(ours, x).backward(dy)
    exact = x.detach().double().requires_grad_()
    groups = exact.unflatten(0, (-1, 4))
    variance, mean = torch.var_mean(groups, (1, 3, 4), correction=0, keepdim=True)
    normal = (groups - mean) * (variance + ours.eps).rsqrt()
    (normal * ours.weight[:, None, None] + ours.bias[:, None, None]).relu().flatten(0, 1).backward(dy.double())
    assert x.grad is not None
    assert exact.grad is not None
    assert (x.grad - exact.grad).norm() < 5e-3 * exact.grad.norm()  # bfloat16 rounds by 1 / 256 at most


def test_eager_steps_are_computed_by_the_layer_itself() -> None:
    """Many passes would take the place of one of torch."""
    plain, ours = norms(0)
    assert torch.equal(norm_relu(ours, maps()), torch.relu(plain(maps())))


@pytest.mark.usefixtures("compiling")
def test_a_layer_with_hooks_is_called() -> None:
    plain, ours = norms(0)
    seen: list[Tensor] = []
    ours.register_forward_hook(lambda *call: seen.append(call[-1]))
    assert torch.equal(norm_relu(ours, maps()), torch.relu(plain(maps())))
    assert len(seen) == 1


@pytest.mark.usefixtures("compiling")
def test_other_batches_and_predictions_are_computed_by_the_layer_itself() -> None:
    plain, ours = norms(0)
    assert torch.equal(norm_relu(ours, maps()[:3]), torch.relu(plain(maps()[:3])))
    assert torch.equal(norm_relu(ours, maps().float()), torch.relu(plain(maps().float())))
    plain.eval()
    ours.eval()
    assert torch.equal(norm_relu(ours, maps()), torch.relu(plain(maps())))


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(16, affine=False), nn.BatchNorm2d(16, momentum=None), nn.SyncBatchNorm(16), nn.ReLU()]
)
def test_other_layers_stay_as_they_are(norm: nn.Module) -> None:
    set_norm_relu(norm, SIZE)
    assert "summed" not in vars(norm)


def test_small_maps_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_sums, "LEAST", math.prod(SIZE) + 1)
    norm = nn.BatchNorm2d(16)
    set_norm_relu(norm, SIZE)
    assert "summed" not in vars(norm)


def test_operators_are_well_formed() -> None:
    torch.library.opcheck(norm_statistics, (maps(), torch.rand(SIZE[1]), torch.rand(SIZE[1]), 1e-5, 4))
    torch.library.opcheck(norm_relu_gradients, (maps(0.0), maps(), torch.rand(5, 2, SIZE[1]), 4))


def test_a_kernel_that_is_wrong_or_fails_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module, cpu = sys.modules["mixmo.kernels.norm_relu"], torch.device("cpu")
    assert sums_are_right.__wrapped__(cpu)
    monkeypatch.setattr(module, "norm_statistics", lambda *_: torch.full((5, 2, 64), torch.nan))
    with pytest.warns(RuntimeWarning, match="batch normalisation is not used .*its result differs"):
        assert not sums_are_right.__wrapped__(cpu)
    monkeypatch.setattr(module, "norm_statistics", Mock(side_effect=RuntimeError("no kernel image")))
    with pytest.warns(RuntimeWarning, match="RuntimeError: no kernel image"):
        assert not sums_are_right.__wrapped__(cpu)
