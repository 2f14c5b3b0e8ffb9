"""TrivialAugment and RandAugment: every operation equals torchvision's on PIL images, on every pixel (tolerance zero).

The reference is torchvision's own `_apply_op`, which its transforms call, with images of PIL: the usual pipeline. Its
functions of tensors round differently, so they are not compared.
"""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import mixmo  # noqa: F401  (a torchvision built for CUDA imports on a CPU only after it)
from mixmo.augment.auto_augment import (
    AUTO_AUGMENT,
    BINS,
    OPERATIONS,
    RAND_AUGMENT_UNIFORMS,
    TRIVIAL_AUGMENT_UNIFORMS,
    magnitude,
    operate,
    rand_augment,
    rand_ranges,
    trivial_augment,
    trivial_ranges,
)

autoaugment = pytest.importorskip("torchvision.transforms.autoaugment")
NAMES = dict(zip(OPERATIONS, autoaugment.TrivialAugmentWide()._augmentation_space(BINS), strict=True))
SHAPES = [(32, 32, 3), (24, 24, 1), (20, 33, 3)]


def pictures(h: int, w: int, channels: int) -> Tensor:
    """Noise, a smooth picture, few levels, dull colours, one level with a spot, all black: uint8 (6, h, w, C)."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (h, w, channels), generator=generator)
    ramp = (torch.linspace(20, 200, h)[:, None] + torch.linspace(0, 55, w))[..., None] / torch.arange(1, channels + 1)
    flat = torch.full((h, w, channels), 77)
    flat[: h // 4, : w // 3] = 30
    dull = 90 + noise // 5
    return torch.stack([noise, ramp.long(), noise // 64 * 64, dull, flat, torch.zeros_like(flat)]).to(torch.uint8)


def theirs(image: Tensor, name: str, strength: float) -> Tensor:
    """One operation with torchvision and PIL."""
    strength = round(strength) if name == "posterize" else strength
    picture = Image.fromarray(image.numpy().squeeze())
    nearest = autoaugment.InterpolationMode.NEAREST
    changed = autoaugment._apply_op(picture, NAMES[name], strength, interpolation=nearest, fill=None)
    return torch.from_numpy(np.array(changed)).view(image.shape)


def spaces(h: int, w: int) -> dict[str, dict[str, tuple[Tensor, bool]]]:
    """torchvision's magnitudes and whether they have a sign."""
    return {
        "trivialaugment": autoaugment.TrivialAugmentWide()._augmentation_space(BINS),
        "randaugment": autoaugment.RandAugment()._augmentation_space(BINS, (h, w)),
    }


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_equals_torchvision(name: str, shape: tuple[int, int, int]) -> None:
    """At every magnitude of both methods and both signs."""
    images = pictures(*shape)
    for space in spaces(*shape[:2]).values():
        magnitudes, signed = space[NAMES[name]]
        levels = magnitudes.reshape(-1).double()
        for strength in torch.cat((levels, -levels)) if signed else levels:
            code = torch.full((len(images),), OPERATIONS.index(name))
            got = operate(images, code, strength.expand(len(images)))
            assert got.dtype == torch.uint8
            for ours, image in zip(got, images, strict=True):
                assert torch.equal(ours, theirs(image, name, strength.item())), strength


def level(method: str, name: str, bin_number: int, positive: bool, h: int, w: int) -> float:
    ranges = {"trivialaugment": trivial_ranges(), "randaugment": rand_ranges(h, w)}[method]
    one = torch.ones(1, dtype=torch.long)
    return magnitude(OPERATIONS.index(name) * one, bin_number * one, one * positive > 0, ranges).item()


@pytest.mark.parametrize("method", list(AUTO_AUGMENT))
@pytest.mark.parametrize("name", OPERATIONS)
def test_magnitudes_equal_torchvision(name: str, method: str) -> None:
    """To the precision of float32, its type."""
    h, w = 20, 33
    magnitudes, signed = spaces(h, w)[method][NAMES[name]]
    for bin_number, size in enumerate(magnitudes.expand(BINS).tolist()):
        for positive in (True, False):
            got = level(method, name, bin_number, positive, h, w)
            expected = -size if signed and not positive else size
            if name == "posterize":
                assert round(got) == expected
            else:
                assert got == pytest.approx(expected, rel=2e-6, abs=1e-6)


def test_trivial_augment_applies_one_operation_to_each_image() -> None:
    images = pictures(32, 32, 3).repeat(25, 1, 1, 1)
    u = torch.rand(150, TRIVIAL_AUGMENT_UNIFORMS, generator=torch.Generator().manual_seed(1))
    for ours, image, (which, size, sign) in zip(trivial_augment(images, u), images, u.tolist(), strict=True):
        name = OPERATIONS[int(14 * which)]
        strength = level("trivialaugment", name, int(31 * size), sign < 0.5, 32, 32)
        assert torch.equal(ours, theirs(image, name, strength))


def test_rand_augment_applies_two_operations_in_turn() -> None:
    images = pictures(32, 32, 3).repeat(25, 1, 1, 1)
    u = torch.rand(150, RAND_AUGMENT_UNIFORMS, generator=torch.Generator().manual_seed(2))
    for ours, image, draws in zip(rand_augment(images, u), images, u.tolist(), strict=True):
        for which, sign in (draws[:2], draws[2:]):
            name = OPERATIONS[int(14 * which)]
            image = theirs(image, name, level("randaugment", name, 9, sign < 0.5, 32, 32))
        assert torch.equal(ours, image)


def test_every_operation_and_magnitude_is_drawn_equally_often() -> None:
    """Of a grid over the first uniform number, each of 14 different results has one in 14; of the second, one in 31."""
    u = torch.zeros(1400, 3)
    u[:, 0], u[:, 1] = (torch.arange(1400) + 0.5) / 1400, 0.99
    picture = pictures(48, 48, 3)[3:4]
    counts = trivial_augment(picture.expand(1400, -1, -1, -1), u).flatten(1).unique(dim=0, return_counts=True)[1]
    assert counts.tolist() == [100] * 14
    u = torch.full((310, 3), OPERATIONS.index("rotate") / 14 + 0.01)
    u[:, 1] = (torch.arange(310) + 0.5) / 310
    counts = trivial_augment(picture.expand(310, -1, -1, -1), u).flatten(1).unique(dim=0, return_counts=True)[1]
    assert counts.tolist() == [10] * 31


@pytest.mark.parametrize("method", list(AUTO_AUGMENT))
def test_extreme_numbers_are_in_range(method: str) -> None:
    function, uniforms = AUTO_AUGMENT[method]
    images = pictures(16, 16, 3)
    for value in (0.0, 0.5, 1 - 2**-24):
        assert function(images, torch.full((len(images), uniforms), value)).shape == images.shape


@pytest.mark.parametrize(
    ("method", "backend"),
    [*((method, "eager") for method in AUTO_AUGMENT), pytest.param("randaugment", "inductor", marks=pytest.mark.slow)],
)
def test_no_host_sync_and_compiles(method: str, backend: str) -> None:
    """Of the two, RandAugment has all operations too, and each of them twice."""
    function, uniforms = AUTO_AUGMENT[method]
    images = pictures(16, 16, 3)
    u = torch.rand(len(images), uniforms, generator=torch.Generator().manual_seed(3))
    assert function(images.to("meta"), u.to("meta")).shape == images.shape
    compiled = torch.compile(function, fullgraph=True, dynamic=False, backend=backend)
    assert torch.equal(compiled(images, u), function(images, u))
