"""The convolution in fp8, computed by torch: quantisation, gradients, and the layer that uses it."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mixmo.kernels import fp8, ops
from mixmo.kernels.fp8 import Convolution, conv3x3_fp8, conv3x3_fp8_input_gradient
from mixmo.kernels.layer import Conv3x3FP8, Kernels, set_fp8
from mixmo.kernels.ops import CUDNN
from mixmo.kernels.quantisation import E4M3, E5M2, Operands, quantised_gradient, quantised_weights, saturated
from mixmo.kernels.shapes import Shape

ALL = Kernels(CUDNN, CUDNN, CUDNN)
SHAPES = [Shape(2, 16, 6, 5, 32, 1, 1), Shape(2, 32, 7, 7, 16, 2, 0), Shape(3, 16, 4, 6, 16, 2, 1)]


@pytest.mark.parametrize(("dtype", "largest"), [(E4M3, 448), (E5M2, 57344)])
def test_large_numbers_saturate_and_infinity_is_noticed(dtype: torch.dtype, largest: int) -> None:
    x = torch.tensor([1e6, -1e6, largest, 1.0, 0.0, torch.inf, -torch.inf, torch.nan])
    found = saturated(x, dtype).float()
    assert found[:5].tolist() == [largest, -largest, largest, 1, 0]
    assert found[5:].isnan().all()


def test_each_row_of_the_weights_has_the_scale_of_its_maximum() -> None:
    weight = torch.randn(4, 16, 3, 3) * torch.tensor([1e-6, 1.0, 1e6, 0.0])[:, None, None, None]
    weight8, scale = quantised_weights(weight)
    found = weight8.float() * scale[:, None, None, None]
    assert weight8.float().abs().amax((1, 2, 3)).tolist() == [448, 448, 448, 0]
    large = weight8.float().abs() > 2**-6  # the others are subnormal
    assert ((found - weight).abs() <= weight.abs() / 16)[large].all()
    assert not found[3].any()


def operands(shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, weight and dy."""
    x = torch.randn(shape.input).relu().bfloat16().requires_grad_()
    weight = torch.randn(shape.k, shape.c, 3, 3).requires_grad_()
    return x, weight, 1e-4 * torch.randn(shape.output).bfloat16()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradients_are_those_of_the_quantised_operands(shape: Shape) -> None:
    """Forward x8 w8, input gradient dy8 w8', weight gradient x8 dy; and the maximum of dy."""
    x, weight, dy = operands(shape)
    maximum = torch.tensor(1e-4, requires_grad=True)  # of the step before: some of dy saturates
    how = (shape.stride, shape.padding)
    y = Convolution.apply(x, weight, maximum, *how, *ALL)
    found = torch.autograd.grad(y, (x, weight, maximum), dy)

    w8, scale = quantised_weights(weight.detach())
    w8t, scale_t = quantised_weights(weight.detach().transpose(0, 1))
    dy8, unit = quantised_gradient(dy, maximum.detach())
    assert (dy8.float().abs() == 57344).any()
    exact_x = saturated(x.detach(), E4M3).double().requires_grad_()
    forward = (w8.double() * scale[:, None, None, None]).requires_grad_()
    backward = (w8t.double() * scale_t[:, None, None, None]).transpose(0, 1)
    exact = nn.functional.conv2d(exact_x, forward, None, *how)
    (dw,) = torch.autograd.grad(exact, forward, dy.double())
    (dx,) = torch.autograd.grad(nn.functional.conv2d(exact_x, backward, None, *how), exact_x, dy8.double() * unit)

    assert y.dtype == found[0].dtype == torch.bfloat16
    assert found[1].dtype == found[2].dtype == torch.float32
    for ours, expected in zip((y, *found[:2]), (exact, dx, dw), strict=True):
        assert (ours - expected).norm() / expected.norm() < 4e-3  # bfloat16
    assert found[2].item() == dy.abs().max().item()


def test_fake_tensors_are_like_the_real_ones() -> None:
    shape = SHAPES[0]
    x, weight, dy = (each.detach() for each in operands(shape))
    how, checks = (shape.stride, shape.padding, CUDNN), ("test_faketensor",)
    torch.library.opcheck(conv3x3_fp8, (saturated(x, E4M3), *quantised_weights(weight), *how), test_utils=checks)
    weights = quantised_weights(weight.transpose(0, 1))
    sizes = (shape.h, shape.w)
    torch.library.opcheck(conv3x3_fp8_input_gradient, (saturated(dy, E5M2), *weights, *sizes, *how), test_utils=checks)


def layer() -> nn.Conv2d:
    made = nn.Conv2d(16, 32, 3, padding=1, bias=False)
    set_fp8(made, SHAPES[0], ALL)
    return made


def test_a_layer_keeps_its_state_and_predicts_as_before() -> None:
    plain = nn.Conv2d(16, 32, 3, padding=1, bias=False)
    ours, x = copy.deepcopy(plain), torch.randn(SHAPES[0].input)
    set_fp8(ours, SHAPES[0], ALL)
    assert list(ours.state_dict()) == ["weight"]
    assert list(ours.parameters()) == [ours.weight]
    trained = ours(x)
    assert trained.dtype == torch.bfloat16
    assert 0 < (trained - plain(x)).norm() / plain(x).norm() < 0.1
    assert torch.equal(ours(x[:1]), plain(x[:1]))
    ours.eval()
    assert torch.equal(ours(x), plain(x))


def test_only_the_quantised_input_is_kept_for_the_backward_pass() -> None:
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        layer()(torch.randn(SHAPES[0].input, dtype=torch.bfloat16, requires_grad=True))
    assert [each.dtype for each in kept if each.shape == SHAPES[0].input] == [E4M3]


def test_a_compiled_layer_copies_no_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators get what they read in channels_last; any other layout costs a pass over the memory."""
    found = []

    def note(direction: str, x: Tensor) -> None:
        found.append((direction, x.is_contiguous(memory_format=torch.channels_last)))

    real_fp8, real = fp8.compute_fp8, ops.compute

    def in_fp8(direction: str, kernel: str, operands: Operands, shape: Shape) -> Tensor:
        note(direction, operands.a)
        return real_fp8(direction, kernel, operands, shape)

    def in_half(direction: str, kernel: str, x: Tensor, *rest: Any) -> Tensor:
        note(direction, x)
        return real(direction, kernel, x, *rest)

    monkeypatch.setattr(fp8, "compute_fp8", in_fp8)
    monkeypatch.setattr(ops, "compute", in_half)
    net = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), layer()).to(memory_format=torch.channels_last)
    x = torch.randn(SHAPES[0].input).to(memory_format=torch.channels_last)
    torch.compile(net, backend="aot_eager", fullgraph=True)(x).sum().backward()
    assert sorted(found) == [("forward", True), ("input", True), ("weight", True)]


def test_a_compiled_layer_is_one_graph_with_the_same_gradients() -> None:
    found = []
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), layer())
    x, dy = torch.randn(SHAPES[0].input), torch.randn(SHAPES[0].output)
    for call in (net, torch.compile(net, backend="aot_eager", fullgraph=True)):
        (call(x) * dy).sum().backward()
        tensors = (net[0].weight, net[2].weight, net[2].maximum)
        assert isinstance(net[2], Conv3x3FP8)
        found.append([each.grad for each in tensors])
        for each in tensors:
            each.grad = None
    torch.testing.assert_close(*found)
