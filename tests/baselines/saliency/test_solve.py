"""The energy by its formula, its minimum against every labelling, and against maximum flow on larger grids."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import maximum_flow
from torch import Tensor

from mixmo.baselines.saliency import energy as of_energy
from mixmo.baselines.saliency.energy import Energy, puzzle_energy, shares, squares
from mixmo.baselines.saliency.solve import EXACT, coarsely, frontier, minimise, strips

CPU = torch.device("cpu")
D = squares(CPU)


def problem(n: int, pooled: int, count: int = 6, seed: int = 0) -> tuple[Energy, Tensor, Tensor, float]:
    """Peaked saliency and random pixels, as in training; lambda of each seed is another."""
    generator = torch.Generator().manual_seed(seed)
    saliency = torch.rand(count, n, n, generator=generator) ** 4
    saliency = saliency / saliency.sum((1, 2), keepdim=True)
    pixels = torch.rand(count, 3, pooled, pooled, generator=generator)
    lam = torch.rand((), generator=generator)
    energy = puzzle_energy(saliency, saliency.roll(1, 0), pixels, pixels.roll(1, 0), lam)
    return energy, saliency, pixels, lam.item()


def by_formula(z: np.ndarray, own: np.ndarray, other: np.ndarray, x: np.ndarray, y: np.ndarray, lam: float) -> float:
    """Of a binary mask: saliency lost, prior, and per border beta [z differs] + beta gamma |difference of pixels|."""
    n, k = len(z), x.shape[-1] // len(z)
    beta = 1.2 / n / 16
    total = 0.0
    for i, j in itertools.product(range(n), range(n)):
        total += other[i, j] if z[i, j] else own[i, j]
        total -= 0.2 / n**2 * math.log((lam if z[i, j] else 1 - lam) ** 2 + 1e-8)
        here = x if z[i, j] else y
        for di, dj in ((1, 0), (0, 1)):
            if i + di == n or j + dj == n:
                continue
            there = x if z[i + di, j + dj] else y
            total += beta * (z[i, j] != z[i + di, j + dj])
            for t in range(k):
                a = here[:, i * k + (k - 1 if di else t), j * k + (t if di else k - 1)]
                b = there[:, (i + di) * k + (0 if di else t), (j + dj) * k + (t if di else 0)]
                total += beta * 0.5 * np.abs(a - b).mean() / k
    return total


def plain(energy: Energy, label: np.ndarray, sample: int) -> float:
    """The energy in loops."""
    unary, down, right = (part[sample].numpy() for part in energy)
    n, m = label.shape
    total = 0.0
    for i, j in itertools.product(range(n), range(m)):
        total += unary[i, j, label[i, j]]
        if i + 1 < n:
            total += down[i, j] * (label[i, j] - label[i + 1, j]) ** 2 / 4
        if j + 1 < m:
            total += right[i, j] * (label[i, j] - label[i, j + 1]) ** 2 / 4
    return total


def by_flow(energy: Energy, sample: int, scale: float = 2e7) -> float:
    """The least energy by a cut (Ishikawa): two nodes a block, [label >= 1] and [label >= 2], in integers."""
    unary, down, right = (part[sample].double().numpy() for part in energy)
    n = len(unary)
    source, sink = 2 * n * n, 2 * n * n + 1
    edges: list[tuple[int, int, float]] = []
    shift = unary.min(2).sum()
    costs = unary - unary.min(2, keepdims=True)

    def pair(p: int, q: int, weight: float) -> None:
        for a, b, times in ((0, 0, 1), (1, 1, 1), (1, 0, 2)):
            edges.append((2 * p + a, 2 * q + b, times * weight / 4))
            edges.append((2 * q + a, 2 * p + b, times * weight / 4))

    for i, j in itertools.product(range(n), range(n)):
        p = i * n + j
        edges += [
            (source, 2 * p, costs[i, j, 0]),
            (2 * p, 2 * p + 1, costs[i, j, 1]),
            (2 * p + 1, sink, costs[i, j, 2]),
        ]
        edges.append((2 * p + 1, 2 * p, 50.0))
        if i + 1 < n:
            pair(p, p + n, down[i, j])
        if j + 1 < n:
            pair(p, p + 1, right[i, j])
    rows, columns, values = (np.array(part) for part in zip(*edges, strict=True))
    capacity = coo_matrix((np.rint(values * scale).astype(np.int32), (rows, columns)), shape=(sink + 1, sink + 1))
    return shift + maximum_flow(capacity.tocsr(), source, sink).flow_value / scale


@pytest.mark.parametrize(("n", "pooled"), [(2, 2), (2, 8), (4, 8)])
def test_energy_of_binary_masks_equals_its_formula(n: int, pooled: int) -> None:
    """Up to a constant, which the split of the borders' cost into unary and pairwise terms adds."""
    energy, saliency, pixels, lam = problem(n, pooled)
    label = 2 * torch.randint(0, 2, (20, 6, n, n), generator=torch.Generator().manual_seed(1))
    ours = torch.stack([energy.of(one, D) for one in label])
    for k in range(6):
        sample = (saliency[k], saliency[k - 1], pixels[k], pixels[k - 1])
        theirs = [by_formula(z[k].numpy() == 2, *(part.numpy() for part in sample), lam) for z in label]
        offsets = ours[:, k].double() - torch.tensor(theirs).double()
        torch.testing.assert_close(offsets, offsets[:1].expand(20), atol=1e-5, rtol=0)


def test_energy_equals_a_loop() -> None:
    energy, *_ = problem(4, 8)
    label = torch.randint(0, 3, (6, 4, 4))
    expected = [plain(energy, label[k].numpy(), k) for k in range(6)]
    torch.testing.assert_close(energy.of(label, D), torch.tensor(expected, dtype=torch.float32))


def test_prior_is_binomial() -> None:
    torch.testing.assert_close((-of_energy.prior(torch.tensor(0.3))).exp(), torch.tensor([0.49, 0.42, 0.09]))
    assert shares(CPU).tolist() == [0, 0.5, 1]


@pytest.mark.parametrize("shape", [(2, 2), (1, 4), (4, 1), (3, 3), (2, 4)])
@pytest.mark.parametrize("strength", [0.1, 1.0])
def test_frontier_equals_brute_force(shape: tuple[int, int], strength: float) -> None:
    h, w = shape
    generator = torch.Generator().manual_seed(h * w)
    unary = torch.rand(5, h, w, 3, generator=generator)
    down, right = (strength * torch.rand(5, *s, generator=generator) for s in ((h - 1, w), (h, w - 1)))
    energy = Energy(unary, down, right)
    found = frontier(energy, D)
    every = torch.cartesian_prod(*[torch.arange(3)] * (h * w)).view(-1, h, w)
    for k in range(5):
        one = Energy(*(part[k : k + 1].expand(len(every), *part.shape[1:]) for part in energy))
        best = one.of(every, D).min()
        torch.testing.assert_close(energy.of(found, D)[k], best)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grids_up_to_eight_are_exact(seed: int) -> None:
    energy, *_ = problem(EXACT, 8, count=4, seed=seed)
    found = energy.of(minimise(energy, D), D)
    for k in range(4):
        assert found[k].item() == pytest.approx(by_flow(energy, k), abs=2e-5)


def test_larger_grids_are_close_to_exact() -> None:
    """Most are exact and the rest near, where the best labels of each block by itself are far off."""
    gaps, alone = [], []
    for seed in range(4):
        energy, *_ = problem(16, 16, count=4, seed=seed)
        least = torch.tensor([by_flow(energy, k) for k in range(4)])
        gaps.append((energy.of(minimise(energy, D), D) - least) / least)
        alone.append((energy.of(energy.unary.argmin(3), D) - least) / least)
    gap = torch.cat(gaps)
    assert gap.min() > -1e-5
    assert gap.max() < 2e-3
    assert (gap < 1e-5).float().mean() >= 0.8
    assert torch.cat(alone).mean() > 0.1


def test_coarse_labels_equal_brute_force() -> None:
    energy, *_ = problem(4, 4)
    found = energy.of(coarsely(energy, D, 2), D)
    every = torch.cartesian_prod(*[torch.arange(3)] * 4).view(-1, 2, 2).repeat_interleave(2, 1).repeat_interleave(2, 2)
    least = torch.stack([energy.of(one.expand(6, -1, -1), D) for one in every]).min(0).values
    torch.testing.assert_close(found, least)


def test_every_turn_lowers_the_energy() -> None:
    energy, *_ = problem(16, 16, seed=4)
    label = torch.randint(0, 3, (6, 16, 16))
    before = energy.of(label, D)
    for which in (slice(0, None, 2), slice(1, None, 2)):
        label = strips(energy, D, label, which)
        after = energy.of(label, D)
        assert (after <= before + 1e-6).all()
        before = after
