"""Batch normalisation and ReLU as one function: what torch's two layers compute."""

import pytest
import torch
from torch import nn

from mixmo.engine.norm import set_ghost
from mixmo.models.norm_relu import fused_norm_relu


def layer(ghost: int) -> nn.Module:
    """Return a normalisation with weights, biases and running statistics of its own."""
    net = nn.Sequential(nn.BatchNorm2d(6, momentum=0.3))
    generator = torch.Generator().manual_seed(0)
    for tensor in (*net.parameters(), net[0].running_mean):
        nn.init.normal_(tensor.data, generator=generator)
    if ghost:
        set_ghost(net, ghost)
    return net[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ghost", [0, 4])
def test_fused_norm_relu_agrees_with_its_two_layers(ghost: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x, dy = (torch.randn(12, 6, 5, 7, generator=generator).mul(3).add(2).to(dtype) for _ in range(2))
    x, dy = (one.contiguous(memory_format=torch.channels_last) for one in (x, dy))
    ours, theirs = layer(ghost), layer(ghost)
    own, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = fused_norm_relu(ours, own), theirs(other).relu()
    y.backward(dy)
    expected.backward(dy)
    assert y.dtype == expected.dtype == dtype
    assert (expected == 0).any()
    assert expected.any()
    tolerance = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 5e-2}
    torch.testing.assert_close(y, expected, **tolerance)
    torch.testing.assert_close(own.grad, other.grad, **tolerance)
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name).grad, parameter.grad, **tolerance)
    for name, buffer in theirs.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), buffer)


def test_gradients_of_fused_norm_relu_agree_with_finite_differences() -> None:
    """In float64, which the function computes in as well."""
    norm, generator = layer(0).double(), torch.Generator().manual_seed(2)
    x = torch.randn(3, 6, 2, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: fused_norm_relu(norm, x), (x, norm.weight, norm.bias))
