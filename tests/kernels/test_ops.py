"""The convolution as torch operators, and the layer that uses them; computed by torch, as on any device."""

import copy

import pytest
import torch
from torch import Tensor, nn

from mixmo.kernels.layer import Conv3x3, Kernels, set_kernels, shape_of
from mixmo.kernels.ops import CUDNN, conv3x3, conv3x3_input_gradient, conv3x3_weight_gradient
from mixmo.kernels.shapes import Shape

ALL = Kernels(CUDNN, CUDNN, CUDNN)
SHAPES = [Shape(2, 8, 6, 5, 16, 1, 1), Shape(1, 8, 7, 7, 8, 2, 0), Shape(3, 16, 4, 6, 8, 2, 1)]


def tensors(shape: Shape, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    x, weight = torch.randn(shape.input, dtype=dtype), torch.randn(shape.k, shape.c, 3, 3, dtype=dtype)
    return x.requires_grad_(), weight.requires_grad_()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_operator_is_a_convolution_with_its_gradients(shape: Shape) -> None:
    x, weight = tensors(shape)
    ours = conv3x3(x, weight, shape.stride, shape.padding, *ALL)
    expected = nn.functional.conv2d(x, weight, None, shape.stride, shape.padding)
    torch.testing.assert_close(ours, expected)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    dy = torch.randn_like(expected)
    for found, wanted in zip(*(torch.autograd.grad(y, (x, weight), dy) for y in (ours, expected)), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operators_are_well_formed(shape: Shape) -> None:
    """Schema, fake tensors, autograd and tracing, as torch checks them."""
    x, weight = tensors(shape, torch.float32)
    dy = torch.randn(shape.output)
    how = (shape.stride, shape.padding)
    torch.library.opcheck(conv3x3, (x, weight, *how, *ALL))
    for gradient in (conv3x3_input_gradient, conv3x3_weight_gradient):
        torch.library.opcheck(gradient, (dy, x.detach(), weight.detach(), *how, CUDNN))


def replaced(plain: nn.Conv2d, shape: Shape, dtype: torch.dtype = torch.bfloat16) -> nn.Conv2d:
    layer = copy.deepcopy(plain)
    set_kernels(layer, shape, dtype, ALL)
    return layer


def test_a_layer_keeps_its_names_and_computes_what_it_did_in_half_precision() -> None:
    shape = Shape(2, 8, 6, 6, 16, 1, 1)
    plain = nn.Conv2d(8, 16, 3, padding=1, bias=False)
    ours, x = replaced(plain, shape), torch.randn(shape.input)
    assert isinstance(ours, Conv3x3)
    assert list(ours.state_dict()) == ["weight"]
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = ours(x), plain(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected)
    for y in (found, expected):
        y.float().square().sum().backward()
    assert ours.weight.grad is not None
    assert ours.weight.grad.dtype == torch.float32
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad, rtol=2e-2, atol=2e-2)


def test_a_layer_predicts_and_computes_other_batches_as_before() -> None:
    plain = nn.Conv2d(8, 16, 3, padding=1, bias=False)
    ours = replaced(plain, Shape(2, 8, 6, 6, 16, 1, 1))
    other = torch.randn(3, 8, 6, 6)
    assert torch.equal(ours(other), plain(other))
    ours.eval()
    assert torch.equal(ours(other[:2]), plain(other[:2]))


def test_a_compiled_layer_is_one_graph() -> None:
    shape = Shape(2, 8, 6, 6, 16, 1, 1)
    layer, x = replaced(nn.Conv2d(8, 16, 3, padding=1, bias=False), shape), torch.randn(shape.input)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.parametrize(
    ("layer", "supported"),
    [
        (nn.Conv2d(8, 16, 3, padding=1, bias=False), True),
        (nn.Conv2d(8, 16, 3, stride=2, bias=False), True),
        (nn.Conv2d(8, 16, 3, padding=1), False),
        (nn.Conv2d(8, 16, 1, bias=False), False),
        (nn.Conv2d(8, 16, 3, padding=2, bias=False), False),
        (nn.Conv2d(8, 16, 3, padding="same", bias=False), False),
        (nn.Conv2d(8, 16, 3, padding=1, groups=2, bias=False), False),
        (nn.Conv2d(8, 16, 3, stride=3, bias=False), False),
        (nn.Conv2d(8, 16, 3, dilation=2, bias=False), False),
        (nn.Conv2d(8, 16, 3, padding=1, padding_mode="reflect", bias=False), False),
        (nn.Conv2d(8, 12, 3, padding=1, bias=False), False),
        (nn.Conv2d(3, 16, 3, padding=1, bias=False), False),
    ],
)
def test_which_layers_the_kernels_compute(layer: nn.Conv2d, supported: bool) -> None:
    assert (shape_of(layer, (2, layer.in_channels, 9, 9)) is not None) == supported
