"""Pixel augmentations against loops over samples, and against the authors' pixel CutMix under a MixMo mask."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mixmo.augment.pixel import AUGMENTATIONS, Mixed, blend
from mixmo.mixing.masks import cut

H, W, N = 12, 16, 64
Draws = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def drawn(name: str, seed: int = 0) -> Draws:
    """Images, partners, lambda, uniform numbers (every sample is augmented) and what is visible, empty for sample 0."""
    generator = torch.Generator().manual_seed(seed)
    images, partner = torch.randn(2, N, 3, H, W, generator=generator)
    lam = torch.rand(N, generator=generator)
    u = torch.rand(N, AUGMENTATIONS[name].uniforms, generator=generator)
    visible = cut(torch.rand(N, generator=generator), torch.rand(N, 2, generator=generator), H, W)
    visible[N // 2 :] = 1 - visible[N // 2 :]
    visible[0] = 0
    return images, partner, lam, u, visible


def share(mask: Tensor, visible: Tensor) -> float:
    seen = total = 0.0
    for i in range(H):
        for j in range(W):
            seen += float(mask[i, j] * visible[i, j])
            total += float(visible[i, j])
    return seen / total if total else 1.0


# One sample at a time: (x, k, lam, u, visible, keep_main) -> mixed image, lambda'.
One = tuple[Tensor, float]


def loop_mixup(x: Tensor, k: Tensor, lam: float, u: list[float], visible: Tensor, keep_main: bool) -> One:
    if not visible.any():
        return lam * x + (1 - lam) * k, 1.0
    lam = max(lam, 1 - lam) if keep_main else lam
    return lam * x + (1 - lam) * k, lam


def loop_cutmix(x: Tensor, k: Tensor, lam: float, u: list[float], visible: Tensor, keep_main: bool) -> One:
    mask = cut(torch.tensor([lam]), torch.tensor([u]), H, W)[0]
    lam = share(mask, visible)
    if keep_main and lam < 0.5:
        mask, lam = 1 - mask, 1 - lam
    return mask * x + (1 - mask) * k, lam


def loop_resizemix(x: Tensor, k: Tensor, lam: float, u: list[float], visible: Tensor, keep_main: bool) -> One:
    tau = 0.1 + 0.7 * u[0]
    h, w = int(tau * H), int(tau * W)
    top, left = int((H - h + 1) * u[1]), int((W - w + 1) * u[2])
    mask = torch.ones(H, W)
    mask[top : top + h, left : left + w] = 0
    lam = share(mask, visible)
    if keep_main and lam < 0.5:
        x, k, lam = k, x, 1 - lam
    mixed = x.clone()
    small = F.interpolate(k[None], size=(h, w), mode="bilinear", align_corners=False)[0]
    mixed[:, top : top + h, left : left + w] = small
    return mixed, lam


def loop_cutout(x: Tensor, k: Tensor, lam: float, u: list[float], visible: Tensor, keep_main: bool) -> One:
    mixed = x.clone()
    row, column = int(u[0] * H), int(u[1] * W)
    mixed[:, max(row - H // 4, 0) : row + H // 4, max(column - W // 4, 0) : column + W // 4] = 0
    return mixed, 1.0


LOOPS: dict[str, Callable[..., One]] = {
    "mixup": loop_mixup,
    "cutmix": loop_cutmix,
    "resizemix": loop_resizemix,
    "cutout": loop_cutout,
}


@pytest.mark.parametrize("keep_main", [True, False])
@pytest.mark.parametrize("name", list(AUGMENTATIONS))
def test_equals_a_loop(name: str, keep_main: bool) -> None:
    images, partner, lam, u, visible = drawn(name)
    got = AUGMENTATIONS[name](images, partner, lam, u, visible, prob=1.0, keep_main=keep_main)
    swapped = 0
    for i in range(N):
        arguments = (images[i], partner[i], float(lam[i]), u[i, 1:].tolist(), visible[i])
        image, expected = LOOPS[name](*arguments, keep_main)
        torch.testing.assert_close(got.images[i], image, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(float(got.lam[i]), expected, rtol=1e-5, atol=1e-6)
        swapped += not torch.equal(image, LOOPS[name](*arguments, False)[0])
    assert (swapped > 0) == (keep_main and name != "cutout")


def test_the_smallest_patch_is_a_pixel() -> None:
    """A tenth of 8 pixels is less than one."""
    mixed = AUGMENTATIONS["resizemix"](
        torch.zeros(1, 3, 8, 8), torch.ones(1, 3, 8, 8), torch.ones(1), torch.zeros(1, 4), torch.ones(1, 1, 1), prob=1.0
    )
    assert mixed.lam.item() == 63 / 64
    assert mixed.images.sum() == mixed.images[0, :, 0, 0].sum() == 3


@pytest.mark.parametrize("name", list(AUGMENTATIONS))
def test_probability_shapes_and_range_of_lambda(name: str) -> None:
    images, partner, lam, u, visible = drawn(name)
    augmentation = AUGMENTATIONS[name]
    assert augmentation.apply.__doc__
    inputs = [x.contiguous(memory_format=torch.channels_last) for x in (images, partner)]
    mixed = augmentation(inputs[0], inputs[1], lam, u, visible, keep_main=True)
    assert mixed.images.is_contiguous(memory_format=torch.channels_last)
    assert mixed.images.isfinite().all()
    assert mixed.lam.shape == (N,)
    assert (mixed.lam >= 0.5).all(), "the main sample stays predominant"
    assert (mixed.lam <= 1).all()
    assert mixed.lam[0] == 1, "nothing of sample 0 is visible: its own label, and no NaN"

    untouched = u[:, 0] >= 0.5
    assert torch.equal(mixed.images[untouched], images[untouched])
    assert (mixed.lam[untouched] == 1).all()
    touched = ~untouched & (mixed.lam < 1)
    assert (mixed.images[touched] != images[touched]).any(dim=(1, 2, 3)).all()

    never = augmentation(images, partner, lam, u, visible, prob=0.0)
    assert torch.equal(never.images, images)
    if not augmentation.needs_partner:
        assert torch.equal(augmentation(images, images, lam, u, visible, keep_main=True).images, mixed.images)


@pytest.mark.parametrize("name", list(AUGMENTATIONS))
def test_no_host_sync_and_compiles(name: str) -> None:
    augmentation, draws = AUGMENTATIONS[name], drawn(name)

    def apply(images: Tensor, partner: Tensor, lam: Tensor, u: Tensor, visible: Tensor) -> Mixed:
        return augmentation(images, partner, lam, u, visible, keep_main=True)

    assert apply(*(x.to("meta") for x in draws)).images.shape == draws[0].shape
    compiled = torch.compile(apply, fullgraph=True, backend="eager")(*draws)
    assert torch.equal(compiled.images, apply(*draws).images)
    assert torch.equal(compiled.lam, apply(*draws).lam)


def test_the_visible_map_may_be_coarser() -> None:
    """Strided encoders (PreActResNet): the authors pool the pixel mask to the features' resolution; same lambda'."""
    images, partner, lam, u, _ = drawn("cutmix")
    visible = cut(lam.flip(0), u[:, :2], H // 2, W // 2)
    mask = cut(lam, u[:, 1:], H, W)
    got = AUGMENTATIONS["cutmix"](images, partner, lam, u, visible, prob=1.0)
    pooled = F.avg_pool2d(mask[:, None], 2)[:, 0]
    some = visible.sum((1, 2)) > 0
    expected = (pooled * visible).sum((1, 2))[some] / visible.sum((1, 2))[some]
    torch.testing.assert_close(got.lam[some], expected)


@pytest.mark.parametrize("name", list(AUGMENTATIONS))
def test_a_map_of_ones_equals_one_number(name: str) -> None:
    """Everything is visible: a map of ones and one number mean the same."""
    images, partner, lam, u, _ = drawn(name)
    full = AUGMENTATIONS[name](images, partner, lam, u, torch.ones(N, H, W), prob=1.0)
    short = AUGMENTATIONS[name](images, partner, lam, u, torch.ones(N, 1, 1), prob=1.0)
    assert torch.equal(full.images, short.images)
    torch.testing.assert_close(full.lam, short.lam)
    if name == "mixup":
        torch.testing.assert_close(full.lam, lam)


def test_cutmix_equals_the_authors(reference: dict[str, np.ndarray]) -> None:
    """Pixels and weighted targets, number by number: image i is the constant i and has class i mod 10."""
    visible = torch.tensor(reference["msda/mixmo_mask"])
    mask = torch.tensor(reference["msda/msda_mask"])
    pixels = torch.tensor(reference["msda/pixels"])
    kappa = torch.tensor(reference["msda/kappa"]).float()
    main = torch.tensor(reference["msda/index"])
    other = (
        torch.where(pixels == main[:, None, None], -1, pixels).amax((1, 2)).long()
    )  # the partner, read off the pixels
    other = torch.where(other < 0, main, other)

    def constant(index: Tensor) -> Tensor:
        return index.float()[:, None, None, None].expand(-1, 1, 32, 32)

    mixed = blend(constant(main), constant(other), mask, visible, keep_main=True)
    assert torch.equal(mixed.images[:, 0], pixels)
    soft = mixed.lam[:, None] * F.one_hot(main % 10, 10) + (1 - mixed.lam[:, None]) * F.one_hot(other % 10, 10)
    root, rest = kappa ** (1 / 3), (1 - kappa) ** (1 / 3)
    target = (2 * root / (root + rest))[:, None] * soft
    torch.testing.assert_close(target, torch.tensor(reference["msda/target"]), rtol=1e-5, atol=1e-6)


def test_an_empty_region_gives_no_nan(reference: dict[str, np.ndarray]) -> None:
    """Their targets were NaN on Tiny ImageNet. On CIFAR zeros, as are ours: lambda' = 1 times the weight w_r(0) = 0."""
    assert np.isnan(reference["msda/tiny_empty_mask_target"]).all()
    assert (reference["msda/cifar_empty_mask_target"] == 0).all()
    images, partner, lam, u, visible = drawn("cutmix")
    mixed = AUGMENTATIONS["cutmix"](images, partner, lam, u, visible, prob=1.0, keep_main=True)
    assert mixed.lam[0] == 1
    mask = cut(lam[:1], u[:1, 1:], H, W)
    assert torch.equal(mixed.images[0], mask * images[0] + (1 - mask) * partner[0]), "not swapped"
