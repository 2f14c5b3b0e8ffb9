"""Colour jitter equals torchvision's on PIL images, on every pixel; random erasing equals a loop and timm's boxes."""

import math
import random
from itertools import permutations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import mixmo  # noqa: F401  (a torchvision built for CUDA imports on a CPU only after it)
from mixmo.augment.photo import COLOR_JITTER_UNIFORMS, RANDOM_ERASE_UNIFORMS, color_jitter, random_erase

functional = pytest.importorskip("torchvision.transforms.functional")
ADJUST = (functional.adjust_brightness, functional.adjust_contrast, functional.adjust_saturation)
ORDERS = [(0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (1, 0, 2), (2, 1, 0)]


def draws(n: int, uniforms: int, seed: int = 0) -> Tensor:
    return torch.rand(n, uniforms, generator=torch.Generator().manual_seed(seed))


def pictures(n: int, h: int, w: int, channels: int) -> Tensor:
    """Noise around levels from dark to bright."""
    noise = torch.randint(0, 100, (n, h, w, channels), generator=torch.Generator().manual_seed(0))
    return (noise + torch.linspace(0, 155, n)[:, None, None, None]).to(torch.uint8)


@pytest.mark.parametrize("shape", [(32, 32, 3), (20, 33, 3), (8, 8, 1)])
@pytest.mark.parametrize("strength", [0.1, 0.4, 0.9, 1.5])
def test_color_jitter_equals_torchvision(strength: float, shape: tuple[int, int, int]) -> None:
    images, u = pictures(100, *shape), draws(100, COLOR_JITTER_UNIFORMS)
    low = max(0.0, 1 - strength)
    factors = low + (1 + strength - low) * u[:, :3]
    for ours, image, factor, order in zip(color_jitter(images, u, strength), images, factors, u[:, 3], strict=True):
        picture = Image.fromarray(image.numpy().squeeze())
        for which in ORDERS[int(6 * order)]:
            picture = ADJUST[which](picture, factor[which].item())
        assert torch.equal(ours, torch.from_numpy(np.array(picture)).view(shape))


def test_orders_of_the_jitter_are_all_and_different() -> None:
    assert sorted(ORDERS) == sorted(permutations(range(3)))
    u = torch.full((60, COLOR_JITTER_UNIFORMS), 0.9)
    u[:, 3] = (torch.arange(60) + 0.5) / 60
    images = pictures(1, 16, 16, 3).expand(60, -1, -1, -1)
    counts = color_jitter(images, u, 0.9).flatten(1).unique(dim=0, return_counts=True)[1]
    assert counts.tolist() == [10] * 6


@pytest.mark.parametrize("channels", [1, 3])
def test_no_strength_is_the_identity(channels: int) -> None:
    images = pictures(16, 9, 12, channels)
    assert torch.equal(color_jitter(images, draws(16, COLOR_JITTER_UNIFORMS), 0.0), images)


@pytest.mark.parametrize("size", [(32, 32), (20, 33), (7, 40)])
def test_random_erase_equals_a_loop(size: tuple[int, int]) -> None:
    (h, w), n = size, 200
    images, u = torch.randn(n, 3, h, w), draws(n, RANDOM_ERASE_UNIFORMS)
    got = random_erase(images, u, prob=0.5)
    for ours, image, (whether, area, ratio, row, column) in zip(got, images, u.double().tolist(), strict=True):
        expected = image.clone()
        if whether < 0.5:
            share = (0.02 + (1 / 3 - 0.02) * area) * h * w
            form = math.exp(math.log(0.3) + ratio * (math.log(1 / 0.3) - math.log(0.3)))
            height, width = min(round(math.sqrt(share * form)), h), min(round(math.sqrt(share / form)), w)
            top, left = int(row * (h - height + 1)), int(column * (w - width + 1))
            expected[:, top : top + height, left : left + width] = 0
        assert torch.equal(ours, expected)


def test_random_erase_has_the_areas_and_places_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm.data.random_erasing")
    monkeypatch.setattr(timm, "random", random.Random(0))
    images = torch.ones(4000, 1, 32, 32)
    ours = random_erase(images, draws(4000, RANDOM_ERASE_UNIFORMS), prob=1.0) == 0
    theirs = timm.RandomErasing(probability=1.0, device="cpu")(images.clone()) == 0
    torch.testing.assert_close(ours.float().mean((0, 1)), theirs.float().mean((0, 1)), atol=0.03, rtol=0)
    areas = [erased.float().mean((1, 2, 3)).sort().values for erased in (ours, theirs)]
    torch.testing.assert_close(areas[0], areas[1], atol=0.02, rtol=0)


def test_random_erase_keeps_type_memory_and_unchosen_images() -> None:
    images = torch.randn(64, 3, 12, 16).contiguous(memory_format=torch.channels_last)
    u = draws(64, RANDOM_ERASE_UNIFORMS)
    assert torch.equal(random_erase(images, u, prob=0.0), images)
    for dtype in (torch.float32, torch.bfloat16):
        got = random_erase(images.to(dtype), u, prob=1.0)
        assert got.dtype == dtype
        assert got.is_contiguous(memory_format=torch.channels_last)
        assert (got == 0).any(dim=(1, 2, 3)).all()
    kept = u[:, 0] >= 0.3
    assert torch.equal(random_erase(images, u, prob=0.3)[kept], images[kept])


def test_no_host_sync_and_compiles() -> None:
    def pipeline(images: Tensor, jitter: Tensor, erase: Tensor) -> Tensor:
        images = color_jitter(images, jitter, 0.4)
        return random_erase(images.permute(0, 3, 1, 2).float() - 100, erase, 0.5)

    inputs = pictures(6, 8, 8, 3), draws(6, COLOR_JITTER_UNIFORMS), draws(6, RANDOM_ERASE_UNIFORMS)
    assert pipeline(*(x.to("meta") for x in inputs)).shape == (6, 3, 8, 8)
    compiled = torch.compile(pipeline, fullgraph=True, dynamic=False, backend="eager")
    assert torch.equal(compiled(*inputs), pipeline(*inputs))
