"""The transport plan against the rounds as published, in plain loops; against greedy and optimal assignment."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from mixmo.baselines.saliency.transport import EPS, distances, move, plan


def problem(side: int, count: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    saliency = torch.rand(count, side * side, generator=generator) ** 4
    shown = (torch.rand(count, side * side, generator=generator) < 0.5).float()
    return shown, saliency / saliency.sum(1, keepdim=True)


def costs(shown: Tensor, saliency: Tensor, side: int) -> np.ndarray:
    return (EPS * distances(side, shown.device) - saliency[:, None] * shown).double().numpy()


def in_rounds(cost: np.ndarray, side: int) -> list[int]:
    """Which block each place gets; -1 for none."""
    cost, count = cost.copy(), len(cost)
    for _ in range(side):
        got = [-1] * count
        asks = [int(cost[i].argmin()) for i in range(count)]
        for i, j in enumerate(asks):
            if cost[i, j] < 0 and (got[j] < 0 or cost[i, j] < cost[got[j], j]):
                got[j] = i
        for i, j in enumerate(asks):
            if got[j] != i:
                cost[i, j] += 1
    return got


def greedy(cost: np.ndarray) -> list[int]:
    """The cheapest pair first: what the rounds lead to, for both sides rank each other by the same cost."""
    got, taken = [-1] * len(cost), set()
    for i, j in sorted(np.ndindex(*cost.shape), key=lambda at: cost[at]):
        if cost[i, j] < 0 and got[j] < 0 and i not in taken:
            got[j] = i
            taken.add(i)
    return got


@pytest.mark.parametrize("side", [2, 4, 8])
def test_plan_equals_a_loop(side: int) -> None:
    shown, saliency = problem(side)
    found = plan(shown, saliency, side)
    for k in range(len(found)):
        for j, block in enumerate(in_rounds(costs(shown[k], saliency[k], side), side)):
            if shown[k, j]:
                assert found[k, j] == block
            assert block >= 0 or found[k, j] == j


@pytest.mark.parametrize("side", [2, 4])
def test_plan_is_stable_and_near_the_optimum(side: int) -> None:
    """Nothing shown is lost or empty, it is never worse than moving nothing, and the optimum is not far."""
    shown, saliency = problem(side, count=20)
    found = plan(shown, saliency, side)
    gains, best = 0.0, 0.0
    for k in range(len(found)):
        cost = costs(shown[k], saliency[k], side)
        at = [j for j in range(side * side) if shown[k, j]]
        settled = greedy(cost)
        assert [found[k, j].item() for j in at] == [settled[j] for j in at]
        assert len({found[k, j].item() for j in at}) == len(at)
        stay, ours = sum(cost[j, j] for j in at), sum(cost[found[k, j], j] for j in at)
        rows, columns = linear_sum_assignment(cost[:, at])
        least = cost[:, at][rows, columns].sum()
        assert least - 1e-6 <= ours <= stay + 1e-6
        gains, best = gains + stay - ours, best + stay - least
    assert gains > 0.75 * best > 0


def test_no_saliency_moves_nothing() -> None:
    """The published code would show black where no block gains from a place."""
    assert plan(torch.ones(1, 16), torch.zeros(1, 16), 4).tolist() == [list(range(16))]


def test_move_equals_a_loop() -> None:
    images = torch.arange(2 * 3 * 8 * 8).view(2, 3, 8, 8).float()
    source = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(k)) for k in range(2)])
    moved = move(images, source, 4)
    for k in range(2):
        for j, i in enumerate(source[k].tolist()):
            there = moved[k, :, j // 4 * 2 : j // 4 * 2 + 2, j % 4 * 2 : j % 4 * 2 + 2]
            assert torch.equal(there, images[k, :, i // 4 * 2 : i // 4 * 2 + 2, i % 4 * 2 : i % 4 * 2 + 2])
    assert torch.equal(move(images, torch.arange(16).expand(2, -1), 4), images)
