"""What the kernels of mixed encodings compute, in Triton's interpreter on the CPU: run by test_stem.py.

In float16, since the interpreter has no bfloat16 products.
"""

from typing import NamedTuple
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mixmo
from mixmo.kernels import stem_kernels
from mixmo.kernels.stem import mixed_convolution, mixed_convolution_weight_gradient, mixed_stem
from mixmo.surgery import overlapping


class Case(NamedTuple):
    """N images (C, H, W), K channels, an R x S window."""

    n: int
    c: int
    h: int
    w: int
    k: int
    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    members: int = 2

    @property
    def out(self) -> tuple[int, int]:
        sizes = zip((self.h, self.w), self.window, self.stride, self.padding, strict=True)
        h, w = ((side + 2 * pad - window) // stride + 1 for side, window, stride, pad in sizes)
        return h, w


CASES = [
    Case(2, 3, 17, 15, 24, (3, 3), (2, 2), (1, 1)),
    Case(1, 3, 12, 12, 32, (3, 3), (2, 2), (1, 1), members=3),
    Case(2, 3, 21, 24, 64, (7, 7), (2, 2), (3, 3)),
    Case(3, 3, 10, 13, 20, (4, 4), (2, 2), (1, 1)),
    Case(1, 1, 9, 8, 136, (3, 3), (1, 1), (1, 1)),
    Case(2, 4, 11, 14, 8, (5, 2), (3, 1), (0, 2)),
    Case(2, 2, 27, 20, 40, (11, 11), (4, 4), (2, 2), members=1),
]


class Operands(NamedTuple):
    images: list[Tensor]
    weights: list[Tensor]
    biases: list[Tensor]
    coefficients: Tensor
    dy: Tensor

    def double(self) -> "Operands":
        images, weights, biases = ([x.detach().double().requires_grad_() for x in some] for some in self[:3])
        return Operands(images, weights, biases, self.coefficients.double(), self.dy.double())


def operands(case: Case, kind: str, bias: bool) -> Operands:
    generator = torch.Generator().manual_seed(0)
    size = case.n, 1, *(case.out if kind == "cut" else (1, 1))
    if kind == "cut":
        owner = torch.randint(case.members, size, generator=generator)
        coefficients = torch.stack([owner == member for member in range(case.members)]).float()
    else:
        coefficients = torch.rand(case.members, *size, generator=generator).softmax(0)
    sizes = (case.n, case.c, case.h, case.w), (case.k, case.c, *case.window), (case.k,)
    images, weights, biases = (
        [torch.randn(size, generator=generator).half() for _ in range(case.members)] for size in sizes
    )
    images[0] = images[0].to(memory_format=torch.channels_last)  # and others that are not
    for parameter in (*weights, *biases):
        parameter.requires_grad_()
    dy = torch.randn((case.n, case.k, *case.out), generator=generator).half()
    return Operands(images, weights, biases if bias else [], coefficients, dy)


def reference(given: Operands, case: Case) -> Tensor:
    """Return y: M convolutions, mixed."""
    members = range(case.members)
    biases = given.biases or [None] * case.members
    encoded = [F.conv2d(given.images[m], given.weights[m], biases[m], case.stride, case.padding) for m in members]
    return case.members * sum(given.coefficients[m] * encoded[m] for m in members)  # type: ignore[return-value]


def assert_near(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert (found - expected).norm() / expected.norm() < 1e-3  # float16 rounds by 1 / 2,048 at most


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["cut", "linear"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_encodings_and_gradients_agree_with_float64(case: Case, kind: str, bias: bool) -> None:
    given = operands(case, kind, bias)
    exact = given.double()
    found, expected = mixed_stem(*given[:4], case.stride, case.padding), reference(exact, case)
    assert found.dtype == torch.float16
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert_near(found, expected)
    gradients = torch.autograd.grad(found, given.weights + given.biases, given.dy)
    wanted = torch.autograd.grad(expected, exact.weights + exact.biases, exact.dy)
    for ours, theirs in zip(gradients, wanted, strict=True):
        assert_near(ours, theirs)


@pytest.mark.parametrize("bias", [False, True])
def test_a_gradient_penalty_agrees_with_float64(bias: bool) -> None:
    """The gradient of the squared gradients of a sum of squares."""
    case = CASES[0]
    given = operands(case, "cut", bias)
    exact = given.double()
    results = []
    for each, y in (
        (given, mixed_stem(*given[:4], case.stride, case.padding)),
        (exact, reference(exact, case)),
    ):
        parameters = each.weights + each.biases
        first = torch.autograd.grad((y * each.dy).float().square().mean(), parameters, create_graph=True)
        results.append(torch.autograd.grad(sum(one.float().square().mean() for one in first), parameters))
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).norm() / theirs.norm() < 5e-3


@pytest.mark.parametrize("pixels", [16, 32, 256])
def test_other_tiles_compute_the_same(pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tile = stem_kernels.StemTile(pixels, 4, 2, 8)
    monkeypatch.setattr(stem_kernels, "forward_tile", lambda *_: tile)
    monkeypatch.setattr(stem_kernels, "weight_gradient_tile", lambda *_: tile)
    test_encodings_and_gradients_agree_with_float64(CASES[2], "cut", False)


def test_the_weight_gradient_is_the_same_for_every_split(monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands(CASES[2], "linear", False)
    found = []
    for steps in (1, 2, 5):  # of four blocks of pixels
        monkeypatch.setattr(stem_kernels, "steps_each", lambda *_, steps=steps: steps)
        y = mixed_stem(*given[:4], CASES[2].stride, CASES[2].padding)
        found.append(torch.autograd.grad(y, given.weights, given.dy))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def test_a_broken_image_spoils_no_other() -> None:
    case = CASES[0]
    given = operands(case, "linear", False)
    given.images[0][1] = float("nan")
    assert mixed_stem(*given[:4], case.stride, case.padding)[0].isfinite().all()


@pytest.mark.parametrize("bias", [False, True])
def test_operators_are_well_formed(bias: bool) -> None:
    """Schema, fake tensors, autograd and tracing, as torch checks them."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 2, 9, 12, 4, generator=generator).half()
    weights = torch.randn(2, 3, 16, 16, generator=generator).half()
    biases = torch.randn(2, 8, generator=generator).requires_grad_() if bias else None
    coefficients = torch.rand(2, 2, 1, 4, 4, generator=generator)
    arguments = images, weights.requires_grad_(), biases, coefficients, [2, 2], 4, 4, 8
    torch.library.opcheck(mixed_convolution, arguments)
    dy = torch.randn(2, 8, 4, 4, generator=generator).half()
    torch.library.opcheck(mixed_convolution_weight_gradient, (dy, images, weights.detach(), coefficients, [2, 2]))


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_the_encodings_have_the_memory_format_and_type_of_a_convolution(form: torch.memory_format) -> None:
    """So that a backbone may go on as behind its own stem, with `view` for example."""
    stems = [nn.Conv2d(3, 8, 3, 2, 1).to(memory_format=form) for _ in range(2)]
    images = [torch.randn(2, 3, 8, 10) for _ in range(2)]
    with torch.autocast("cpu", torch.float16):
        found = overlapping.mixed_windows(stems, images, torch.ones(2, 2, 1, 1, 1))
        expected = stems[0](images[0])
    assert found.stride() == expected.stride()
    assert found.dtype == expected.dtype


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", ["cut", "linear"])
def test_a_wrapped_network_trains_the_same(kind: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits and gradients by the kernels are as near to those in float32 as by M convolutions and the mixing block."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    net = mixmo.wrap(timm.create_model("test_resnet", num_classes=5), members=2, size=(3, 64, 64)).train()
    mix = mixmo.Mixer(kind, stride=net.stride)(torch.randn(8, 3, 64, 64), torch.arange(8) % 5)
    stems = list(net.encoders_at(net.stems[0]).parameters())
    monkeypatch.setattr(stem_kernels, "forward", spy := Mock(side_effect=stem_kernels.forward))

    def results(kernels: bool, half: bool) -> tuple[Tensor, ...]:
        monkeypatch.setattr(overlapping, "available", lambda _: kernels)
        monkeypatch.setattr(overlapping, "stem_is_right", lambda _: True)
        step = torch.compile(net, backend="aot_eager", fullgraph=True) if compiled and kernels else net
        with torch.autocast("cpu", torch.float16, enabled=half):
            logits = step(mix)
        assert spy.called == kernels
        return logits, *torch.autograd.grad(logits.float().square().sum(), stems)

    ways = results(False, False), results(False, True), results(True, True)
    for exact, plain, ours in zip(*ways, strict=True):
        assert (ours - exact).norm() < 1.2 * (plain - exact).norm() < 0.1 * exact.norm()
