"""Every mask against a slow loop over pixels, and against masks of the authors' code."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.special import ndtri
from scipy.stats import ks_2samp
from torch import Tensor

from mixmo.mixing.masks import MASKS, cut, low_pass_noise, standard_normal

SIZES = [(8, 8), (16, 16), (32, 32), (20, 28), (9, 13)]
AUTHORS = {  # their "stackhorizontal" splits rows, which the paper calls vertical concatenation
    "cut": "cutmix",
    "vertical": "stackhorizontal",
    "horizontal": "stackvertical",
    "patchup": "patchuphard2d",
    "cow": "cow",
}


def draw(name: str, h: int, w: int, n: int = 64, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Ratios with both ends, uniform numbers and the masks drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    kappa = torch.rand(n, generator=generator)
    kappa[:2] = torch.tensor([0.0, 1.0])
    u = torch.rand(n, MASKS[name].uniforms(h, w), generator=generator)
    return kappa, u, MASKS[name].draw(kappa, u, h, w)


# The same masks, one sample at a time.


def loop_cut(kappa: float, u: np.ndarray, h: int, w: int) -> np.ndarray:
    mask = np.zeros((h, w))
    row, column = int(u[0] * h), int(u[1] * w)
    half_h, half_w = int(h * np.sqrt(kappa)) // 2, int(w * np.sqrt(kappa)) // 2
    mask[max(row - half_h, 0) : row + half_h, max(column - half_w, 0) : column + half_w] = 1
    return mask


def loop_horizontal(kappa: float, u: np.ndarray, h: int, w: int) -> np.ndarray:
    mask = np.zeros((h, w))
    for column in range(int(w * kappa)):
        mask[:, column if u[0] < 0.5 else w - 1 - column] = 1
    return mask


def loop_vertical(kappa: float, u: np.ndarray, h: int, w: int) -> np.ndarray:
    return loop_horizontal(kappa, u, w, h).T


def loop_patchup(kappa: float, u: np.ndarray, h: int, w: int) -> np.ndarray:
    mask = np.zeros((h, w))
    gamma = kappa * h * w / (49 * (h - 6) * (w - 6))
    for row in range(h):
        for column in range(w):
            if u[row * w + column] < gamma:
                mask[max(row - 3, 0) : row + 4, max(column - 3, 0) : column + 4] = 1
    return mask


def loop_fmix(kappa: float, u: np.ndarray, h: int, w: int) -> np.ndarray:
    smooth = np.zeros((h, w))
    for i, j in np.ndindex(h, w):
        f = np.hypot(min(i, h - i) / h, min(j, w - j) / w)
        rows, columns = 2 * np.pi * i * np.arange(h) / h, 2 * np.pi * j * np.arange(w) / w
        wave = np.outer(np.cos(rows) + np.sin(rows), np.cos(columns) + np.sin(columns))
        smooth += ndtri(float(u[i * w + j])) / max(f, 1 / max(h, w)) ** 3 * wave
    mask = np.zeros(h * w)
    mask[np.argsort(-smooth.ravel())[: round(kappa * h * w)]] = 1
    return mask.reshape(h, w)


def loop_cow(kappa: float, u: np.ndarray, h: int, w: int) -> np.ndarray:
    p, sigma = 0.2 + 0.6 * u[0], np.exp(np.log(4) + u[1] * (np.log(16) - np.log(4)))
    noise = ndtri(u[2:].astype(np.float64)).reshape(h, w)
    smooth = gaussian_filter(noise, sigma, mode="constant", radius=(h - 1, w - 1))
    return smooth <= smooth.mean() + ndtri(p) * smooth.std(ddof=1)


LOOPS: dict[str, Callable[[float, np.ndarray, int, int], np.ndarray]] = {
    "cut": loop_cut,
    "horizontal": loop_horizontal,
    "vertical": loop_vertical,
    "patchup": loop_patchup,
    "fmix": loop_fmix,
    "cow": loop_cow,
}


@pytest.mark.parametrize("size", [*SIZES, (112, 112)])
@pytest.mark.parametrize("name", list(MASKS))
def test_masks_are_binary_float32_and_independent_per_sample(name: str, size: tuple[int, int]) -> None:
    h, w = size
    assert MASKS[name].draw.__doc__
    kappa, u, mask = draw(name, h, w, n=16)
    assert mask.shape == (16, h, w)
    assert mask.dtype == torch.float32
    assert ((mask == 0) | (mask == 1)).all()
    assert torch.equal(mask, MASKS[name].draw(kappa, u, h, w))
    assert torch.equal(mask[5:], MASKS[name].draw(kappa[5:], u[5:], h, w)), "a sample depends on its own numbers only"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", list(MASKS))
def test_equals_a_loop_over_pixels(name: str, size: tuple[int, int]) -> None:
    """Exactly, but for FMix and CowMix, where the last digit of float32 may turn a pixel at the threshold."""
    kappa, u, mask = draw(name, *size, n=24)
    slow = np.stack([LOOPS[name](k, row, *size) for k, row in zip(kappa.tolist(), u.numpy(), strict=True)])
    differing = float((mask.numpy() != slow).mean())
    assert differing <= (1e-3 if name in ("fmix", "cow") else 0)


@pytest.mark.parametrize("name", list(MASKS))
@pytest.mark.parametrize("u", [0.0, 1 - 2**-24])
def test_extreme_uniform_numbers_give_finite_masks(name: str, u: float) -> None:
    """torch.rand gives 0 now and then; its largest float32 is 1 - 2^-24."""
    mask = MASKS[name].draw(torch.tensor([0.5]), torch.full((1, MASKS[name].uniforms(12, 20)), u), 12, 20)
    assert mask.isfinite().all()


@pytest.mark.parametrize("name", list(MASKS))
def test_runs_without_host_sync(name: str) -> None:
    """On the meta device nothing has a value: asking for one, or for a shape that depends on one, raises."""
    u = torch.empty(4, MASKS[name].uniforms(16, 20), device="meta")
    assert MASKS[name].draw(torch.empty(4, device="meta"), u, 16, 20).shape == (4, 16, 20)


@pytest.mark.parametrize("name", list(MASKS))
def test_compiles_without_breaks(name: str) -> None:
    kappa, u, mask = draw(name, 16, 16, n=8)
    backend = "inductor" if name in ("cut", "fmix") else "eager"
    compiled = torch.compile(MASKS[name].draw, fullgraph=True, backend=backend)
    different = (compiled(kappa, u, 16, 16) != mask).float().mean()
    assert different <= (2e-3 if name == "fmix" else 0)


def test_area_follows_kappa() -> None:
    for h, w in SIZES:
        kappa, _, mask = draw("fmix", h, w, n=256)
        assert torch.equal(mask.sum((1, 2)), (kappa * h * w).round())
        for name in ("horizontal", "vertical"):
            kappa, _, mask = draw(name, h, w, n=256)
            missing = kappa - mask.mean((1, 2))
            assert (missing >= -1e-6).all()
            assert (missing < 1 / min(h, w)).all()
        for name in ("cut", "patchup"):
            kappa, _, mask = draw(name, h, w, n=256)
            assert mask[0].sum() == 0
            assert torch.corrcoef(torch.stack([kappa, mask.mean((1, 2))]))[0, 1] > 0.5


def test_cow_ignores_kappa() -> None:
    _, u, mask = draw("cow", 32, 32, n=512)
    assert torch.equal(mask, MASKS["cow"].draw(torch.rand(512), u, 32, 32))
    p = 0.2 + 0.6 * u[:, 0]
    assert abs(float((mask.mean((1, 2)) - p).mean())) < 0.01, "visible is below the threshold, which is p of the area"


def test_both_sides_are_equally_likely() -> None:
    for name in ("horizontal", "vertical"):
        _, _, mask = draw(name, 32, 32, n=4096)
        assert abs(float(mask[:, 0, 0].mean() - mask[:, -1, -1].mean())) < 0.07


@pytest.mark.parametrize("size", [(16, 16), (15, 24)])
def test_low_pass_noise_has_the_spectrum_of_fmix(size: tuple[int, int]) -> None:
    """FMix's definition: Fourier amplitudes of standard deviation 1 / max(f, 1 / max(h, w))^3."""
    h, w = size
    u = torch.rand(4000, h * w, generator=torch.Generator().manual_seed(0))
    power = torch.fft.fft2(low_pass_noise(u, h, w), norm="ortho").abs().square().mean(0)
    f = np.hypot(np.fft.fftfreq(h)[:, None], np.fft.fftfreq(w)).clip(1 / max(h, w))
    np.testing.assert_allclose(power.numpy() * f**6, 1.0, atol=0.12)  # 5 standard errors of a real coefficient


def test_standard_normal_is_the_inverse_distribution_function() -> None:
    u = torch.rand(200_000, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(standard_normal(u).numpy(), ndtri(u.double().numpy()), rtol=1e-4, atol=1e-5)
    assert standard_normal(torch.tensor([0.0, 1.0])).isfinite().all()


# Against the authors' code.


def test_cut_equals_the_authors_boxes(reference: dict[str, np.ndarray]) -> None:
    rows = reference["cutmix/lam_seed_x1_y1_x2_y2"]
    centre = reference["cutmix/centres_seed0to7"][rows[:, 1].astype(int)]
    mask = cut(torch.tensor(rows[:, 0]).float(), torch.tensor((centre + 0.5) / 32).float(), 32, 32)
    for (x1, y1, x2, y2), got in zip(rows[:, 2:].astype(int), mask, strict=True):
        expected = torch.zeros(32, 32)
        expected[x1:x2, y1:y2] = 1
        assert torch.equal(got, expected)


def test_cut_realises_the_authors_ratios(reference: dict[str, np.ndarray]) -> None:
    requested, realised = reference["cutmix/requested_kappa"], reference["cutmix/realised_kappa"]
    u = torch.rand(len(requested), 2, generator=torch.Generator().manual_seed(1))
    ours = cut(torch.tensor(requested).float(), u, 32, 32).mean((1, 2)).numpy()
    assert abs(ours.mean() - realised.mean()) < 0.005
    assert ks_2samp(ours, realised).pvalue > 1e-3


@pytest.mark.parametrize("name", ["horizontal", "vertical"])
def test_concatenations_equal_the_authors(name: str, reference: dict[str, np.ndarray]) -> None:
    """Theirs is kappa from the start of the axis or 1 - kappa from its end: for a symmetric Beta the same masks."""
    theirs = torch.tensor(reference[f"masks/{AUTHORS[name]}"])
    kappa = torch.tensor(reference[f"masks/{AUTHORS[name]}_requested"]).float()
    first = MASKS[name].draw(kappa, torch.full((64, 1), 0.25), 32, 32)
    last = MASKS[name].draw(1 - kappa, torch.full((64, 1), 0.75), 32, 32)
    from_start = (theirs == first).all(dim=(1, 2))
    from_end = (theirs == last).all(dim=(1, 2))
    assert (from_start | from_end).all()
    assert 20 < from_start.sum() < 44


def boundary(mask: np.ndarray) -> np.ndarray:
    return (mask[:, 1:] != mask[:, :-1]).sum((1, 2)) + (mask[:, :, 1:] != mask[:, :, :-1]).sum((1, 2))


def correlation(mask: np.ndarray, lag: int) -> np.ndarray:
    return (mask[:, lag:] == mask[:, :-lag]).mean((1, 2)) + (mask[:, :, lag:] == mask[:, :, :-lag]).mean((1, 2))


@pytest.mark.parametrize("name", ["cut", "patchup", "cow"])
def test_masks_are_distributed_as_the_authors(name: str, reference: dict[str, np.ndarray]) -> None:
    """Area, length of the boundary, agreement of pixels 4 and 12 apart, share of the middle and of the border."""
    theirs = reference[f"masks/{AUTHORS[name]}"]
    kappa = torch.tensor(reference[f"masks/{AUTHORS[name]}_requested"]).float().repeat(40)
    u = torch.rand(len(kappa), MASKS[name].uniforms(32, 32), generator=torch.Generator().manual_seed(2))
    ours = MASKS[name].draw(kappa, u, 32, 32).numpy()
    statistics: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "area": lambda mask: mask.mean((1, 2)),
        "boundary": boundary,
        "correlation at 4": lambda mask: correlation(mask, 4),
        "correlation at 12": lambda mask: correlation(mask, 12),
        "middle": lambda mask: mask[:, 12:20, 12:20].mean((1, 2)),
        "border": lambda mask: np.concatenate([mask[:, 0], mask[:, -1], mask[:, :, 0], mask[:, :, -1]], 1).mean(1),
    }
    for statistic, function in statistics.items():
        expected, got = function(theirs), function(ours)
        distance = (got.mean() - expected.mean()) / (got.std() / np.sqrt(len(expected)))
        assert abs(distance) < 3.5, (statistic, expected.mean(), got.mean())
    assert ks_2samp(statistics["area"](ours), statistics["area"](theirs)).pvalue > 1e-3
