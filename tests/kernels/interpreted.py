"""What the kernels compute, in Triton's interpreter on the CPU: run by test_kernels.py in a process of its own.

In float16, since the interpreter has no bfloat16 products.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import mixmo.kernels.weight_gradient as weight_gradients
from mixmo.kernels import channel_sums
from mixmo.kernels.choice import operands_fp8
from mixmo.kernels.directions import DIRECTIONS, FP8
from mixmo.kernels.fp8 import reference as reference_fp8
from mixmo.kernels.norm_relu import gradients_by_torch, statistics_by_torch
from mixmo.kernels.ops import CUDNN, compute, conv3x3
from mixmo.kernels.shapes import Shape, Tile
from mixmo.kernels.weight_gradient import weight_gradient

ODD = [
    Shape(1, 8, 3, 3, 8, 1, 1),
    Shape(2, 24, 7, 5, 40, 1, 1),
    Shape(3, 40, 4, 5, 8, 1, 0),
    Shape(3, 16, 7, 7, 24, 2, 0),
    Shape(2, 8, 5, 8, 24, 2, 1),
    Shape(1, 8, 2, 1, 8, 2, 1),
]
SMALL = [Tile(32, 16, 0, 16, 4, 2), Tile(16, 16, 16, 32, 4, 2, images=True)]


def alternately(direction: Any) -> list[Tile]:
    """Every tile of a direction in one of its forms, which differ in their box only."""
    forms: dict[Tile, list[Tile]] = {}
    for tile in direction.tiles.values():
        forms.setdefault(tile._replace(images=False), []).append(tile)
    return [some[i % len(some)] for i, some in enumerate(forms.values())]


def operands(shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, weight and dy."""
    generator = torch.Generator().manual_seed(0)
    sizes = shape.input, (shape.k, shape.c, 3, 3), shape.output
    x, weight, dy = (torch.randn(size, generator=generator).half() for size in sizes)
    return x.to(memory_format=torch.channels_last), weight, dy  # and two that the kernels have to copy


def reference(x: Tensor, weight: Tensor, dy: Tensor, stride: int, padding: int) -> dict[str, Tensor]:
    """Return y, dx and dw, tap by tap in float64."""
    x, weight, dy = x.double(), weight.double(), dy.double()
    padded = torch.nn.functional.pad(x, [padding] * 4)
    y, dx, dw = torch.zeros_like(dy), torch.zeros_like(padded), torch.zeros_like(weight)
    out_h, out_w = dy.shape[2:]
    for u in range(3):
        for v in range(3):
            seen = (..., slice(u, u + stride * out_h, stride), slice(v, v + stride * out_w, stride))
            window = padded[seen][..., :out_h, :out_w]
            y += torch.einsum("ncij,kc->nkij", window, weight[..., u, v])
            dw[..., u, v] = torch.einsum("nkij,ncij->kc", dy, window)
            dx[seen][..., :out_h, :out_w] += torch.einsum("nkij,kc->ncij", dy, weight[..., u, v])
    h, w = x.shape[2:]
    return {"forward": y, "input": dx[..., padding : padding + h, padding : padding + w], "weight": dw}


def check(direction: str, shape: Shape, tile: Tile) -> None:
    x, weight, dy = operands(shape)
    found = DIRECTIONS[direction].compute(x, weight, dy, shape.stride, shape.padding, tile)
    expected = reference(x, weight, dy, shape.stride, shape.padding)[direction]
    assert found.dtype == torch.float16
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found - expected).norm() / expected.norm() < 4e-4  # float16 rounds by 1 / 2,048 at most


@pytest.mark.parametrize("shape", ODD, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_kernel_agrees_with_float64(direction: str, shape: Shape) -> None:
    for tile in SMALL:
        check(direction, shape, tile)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_tile_agrees_with_float64(direction: str) -> None:
    for tile in alternately(DIRECTIONS[direction]):
        check(direction, Shape(2, 40, 5, 5, 72, 1, 1), tile)


EVEN = [Shape(2, 16, 7, 5, 48, 1, 1), Shape(3, 48, 7, 7, 16, 2, 0), Shape(1, 16, 5, 8, 32, 2, 1)]


@pytest.mark.parametrize("direction", FP8)
def test_fp8_agrees_with_float64_of_the_quantised_operands(direction: str) -> None:
    """The interpreter cuts bfloat16 off instead of rounding: up to 1 / 128 off, 1 / 256 on average."""
    tiles = [(shape, tile) for shape in EVEN for tile in SMALL]
    tiles += [(Shape(1, 48, 5, 5, 80, 1, 1), tile) for tile in alternately(FP8[direction])]
    for shape, tile in tiles:
        operands = operands_fp8(shape, direction, torch.device("cpu"), 1)[0]
        found, expected = (
            FP8[direction].compute(operands, shape, tile),
            reference_fp8(direction, operands, shape, torch.float64),
        )
        assert found.dtype == torch.bfloat16
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert (found - expected).norm() / expected.norm() < 5e-3, (shape, tile)


def test_the_weight_gradient_is_the_same_every_time_and_for_every_split(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _, dy = operands(Shape(3, 8, 6, 6, 8, 1, 1))  # 12 steps: one for each column of two images, the last one empty
    found = []
    for steps in (5, 5, 12, 1):
        monkeypatch.setattr(weight_gradients, "steps_each", lambda *_, steps=steps: steps)
        found.append(weight_gradient(x, dy, 1, 1, Tile(32, 16, 0, 16, 4, 2)))
    first, again, *others = found
    assert torch.equal(first, again)
    for other in others:
        assert (first - other).abs().max() < 1e-2 * other.abs().max()


def test_an_image_that_diverged_spoils_no_other() -> None:
    """What a box reads outside of the image is zero, not the next image."""
    x, weight, _ = operands(Shape(2, 8, 5, 5, 8, 1, 1))
    x[1] = float("nan")
    y = DIRECTIONS["forward"].compute(x, weight, x, 1, 1, SMALL[0])
    assert y[0].isfinite().all()


@pytest.mark.parametrize("compiled", [False, True])
def test_each_direction_of_the_operator_is_computed_by_its_kernel(compiled: bool) -> None:
    """Forward by torch, the gradient by the input by one tile, that by the weights by another."""
    shape = Shape(1, 8, 4, 4, 8, 1, 1)
    tiles = [next(iter(DIRECTIONS[direction].tiles)) for direction in ("input", "weight")]
    x, weight, dy = operands(shape)
    x.requires_grad_()
    weight.requires_grad_()

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return (conv3x3(x, weight, 1, 1, CUDNN, *tiles) * dy).sum()

    (torch.compile(loss, backend="aot_eager", fullgraph=True) if compiled else loss)(x, weight).backward()
    with torch.no_grad():
        torch.testing.assert_close(x.grad, compute("input", tiles[0], x, weight, dy, 1, 1), rtol=0, atol=0)
        torch.testing.assert_close(weight.grad, compute("weight", tiles[1], x, weight, dy, 1, 1), rtol=0, atol=0)


@pytest.mark.parametrize("size", [(4, 160, 3, 4), (2, 8, 32, 2), (6, 48, 8, 16)], ids=str)
@pytest.mark.parametrize("ghosts", [1, 2])
def test_sums_over_pixels_agree_with_float64(size: tuple[int, ...], ghosts: int) -> None:
    ghost = size[0] // ghosts
    assert channel_sums.supported(size, ghost)
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(size, generator=generator).half() + shift for shift in (20, 0))  # a mean of 20 deviations
    x, dy = (each.to(memory_format=torch.channels_last) for each in (x, dy))
    weight, bias = torch.rand(2, size[1], generator=generator)
    found = channel_sums.statistics(x, weight, bias, 1e-5, ghost)
    assert_close(found, statistics_by_torch(x.double(), weight.double(), bias.double(), 1e-5, ghost))
    assert_close(
        channel_sums.gradients(dy, x, found, ghost), gradients_by_torch(dy.double(), x.double(), found.double(), ghost)
    )


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Compare each kind of number by its largest one: sums of many signs have few digits left."""
    for one, exact in zip(found.double(), expected.double(), strict=True):
        assert (one - exact).abs().max() < 3e-5 * exact.abs().max()
