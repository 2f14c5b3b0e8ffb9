"""The solver against every labelling and against alpha-beta swaps; the rounds against plain loops over one part."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow
from torch import Tensor

from mixmo import UserError
from mixmo.baselines.saliency import comixup
from mixmo.baselines.saliency.comixup import avoided_inputs, comixup_masks, comixup_mix, compatibility, objective
from mixmo.baselines.saliency.potts import chains, potts, potts_energy
from mixmo.recipes import named


def part(m: int = 6, side: int = 16, parts: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Smooth and peaked saliency, mixing ratios, starting labels."""
    generator = torch.Generator().manual_seed(seed)
    maps = F.avg_pool2d(torch.rand(parts, m, side, side, generator=generator) ** 3, 5, 1, 2) ** 3
    gamma = torch._standard_gamma(torch.full((parts, m), 2.0), generator)
    return maps, gamma / gamma.sum(1, keepdim=True), torch.randint(m, (parts, m, 4, 4), generator=generator)


def recorded(monkeypatch: pytest.MonkeyPatch, m: int) -> list[tuple[Tensor, float, Tensor]]:
    """The problems that the solver meets in one call."""
    problems = []

    def record(unary: Tensor, beta: float, distance: Tensor) -> Tensor:
        problems.append((unary, beta, distance))
        return potts(unary, beta, distance)

    monkeypatch.setattr(comixup, "potts", record)
    comixup_masks(*part(m))
    return problems


def edges(n: int) -> list[tuple[int, int]]:
    """Neighbours in an n x n grid."""
    number = np.arange(n * n).reshape(n, n)
    ends = ((number[:-1], number[1:]), (number[:, :-1], number[:, 1:]))
    return [pair for one, other in ends for pair in zip(one.flat, other.flat, strict=True)]


def swaps(unary: np.ndarray, beta: float, distance: np.ndarray, scale: float = 1e6) -> float:
    """The energy where no swap of two labels lowers it any more, each swap by a minimal cut."""
    n, labels = len(unary), [k for k in range(unary.shape[2]) if np.isfinite(unary[..., k]).all()]
    flat, pairs = unary.reshape(n * n, -1), edges(n)
    label = flat[:, labels].argmin(1)
    label = np.array(labels)[label]

    def energy(x: np.ndarray) -> float:
        return flat[np.arange(n * n), x].sum() + beta * sum(distance[x[p], x[q]] for p, q in pairs)

    least, improved = energy(label), True
    while improved:
        improved = False
        for a, b in itertools.combinations(labels, 2):
            inside = np.isin(label, (a, b))
            if not inside.any():
                continue
            cost = np.stack((flat[:, a], flat[:, b]))
            links: list[tuple[int, int, float]] = []
            for p, q in pairs:
                if inside[p] and inside[q]:
                    links += [(p, q, beta * distance[a, b]), (q, p, beta * distance[a, b])]
                for one, other in ((p, q), (q, p)):
                    if inside[one] and not inside[other]:
                        cost[:, one] += beta * distance[[a, b], label[other]]
            cost = cost - cost.min(0)
            source, sink = n * n, n * n + 1
            for p in np.flatnonzero(inside):  # on the side of the source: label a
                links += [(source, p, cost[1, p]), (p, sink, cost[0, p])]
            rows, columns, values = (np.array(x) for x in zip(*links, strict=True))
            graph = coo_matrix((np.rint(values * scale).astype(np.int32), (rows, columns)), shape=(sink + 1, sink + 1))
            rest = graph.tocsr() - maximum_flow(graph.tocsr(), source, sink).flow
            rest.data[rest.data < 0] = 0
            rest.eliminate_zeros()
            near = breadth_first_order(rest, source, return_predecessors=False)
            moved = label.copy()
            moved[inside] = b
            moved[[p for p in near if p < n * n and inside[p]]] = a
            if energy(moved) < least - 1e-6:
                label, least, improved = moved, energy(moved), True
    return float(least)


def by_loops(maps: Tensor, ratio: Tensor, start: Tensor) -> np.ndarray:
    """Co-Mixup of one part, step by step; only the minimisation of one output is ours."""
    m, n = len(maps), 4
    saliency = F.avg_pool2d(maps, maps.shape[-1] // n).double().numpy()
    cost = np.stack([-saliency[k] / saliency[k].sum() - 0.05 / 16 * math.log(ratio[k] + 1e-8) for k in range(m)], -1)
    region = F.avg_pool2d(maps, 8, stride=1).numpy()
    places = [np.unravel_index(region[k].argmax(), region[k].shape) for k in range(m)]
    apart = np.array([[abs(int(a[0]) - int(b[0])) + abs(int(a[1]) - int(b[1])) for b in places] for a in places])
    near = 0.999 * np.eye(m) + 0.001 * apart / apart.sum() * m
    masks = np.eye(m)[start.numpy()]
    avoid = np.zeros((m, m))

    def value() -> float:
        total = sum((cost * masks[j]).sum() for j in range(m))
        for j in range(m):
            total += 0.01 * (np.diff(masks[j], axis=0) ** 2).sum() + 0.01 * (np.diff(masks[j], axis=1) ** 2).sum()
        count = masks.sum((1, 2))
        return float(total + sum(count[j] @ count[k] for j in range(m) for k in range(m) if j != k) / 16)

    before = value()
    for turn in range(4):
        for j in range(m):
            count = masks[j].sum((0, 1))
            others = masks.sum((0, 1, 2)) - count
            over = near @ others > 0.83 * 16
            unary = cost + 2 / 16 * (near @ (over * others)) + avoid[j] / 16
            names = [{k} for k in range(m)]
            if turn > 0 and (count > 0).sum() >= 2:
                top = sorted(torch.tensor(count).float().topk(3).indices[: (count > 0).sum()].tolist())
                names += [set(pair) for pair in itertools.combinations(top, 2)]
            table = np.stack([np.mean([unary[..., k] for k in name], 0) - 5e-4 * (len(name) - 1) for name in names], -1)
            distance = np.array([[0.25 if len(a) != len(b) and a & b else a != b for b in names] for a in names])
            found = potts(torch.tensor(table)[None].float(), 0.02, torch.tensor(distance)[None].float())[0].numpy()
            shown = np.array([[float(k in name) / len(name) for k in range(m)] for name in names])
            masks[j] = shown[found]
        if turn == 2:
            sets = [np.flatnonzero(masks[j].sum((0, 1))) for j in range(m)]
            for j, k in itertools.combinations(range(m), 2):
                if len(sets[j]) > 1 and list(sets[j]) == list(sets[k]):
                    avoid[j, sets[j][0]] = avoid[k, sets[k][1]] = 1
        now = value()
        if abs(before - now) / abs(now) < 1e-6:
            break
        before = now
    return masks


@pytest.mark.parametrize(("n", "labels"), [(2, 4), (3, 3)])
def test_solver_equals_brute_force(n: int, labels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    unary = torch.rand(40, n, n, labels, generator=generator)
    distance = (1 - torch.eye(labels)).expand(40, -1, -1)
    every = torch.cartesian_prod(*[torch.arange(labels)] * (n * n)).view(-1, n, n)
    found = potts_energy(unary, 0.3, distance, potts(unary, 0.3, distance))
    least = torch.stack(
        [
            potts_energy(u.expand(len(every), -1, -1, -1), 0.3, distance[:1].expand(len(every), -1, -1), every).min()
            for u in unary
        ]
    )
    assert (found >= least - 1e-5).all()
    assert ((found - least) < 1e-5).float().mean() >= 0.8
    assert (found - least).mean() < 0.01 * least.mean()


def test_solver_is_no_worse_than_swaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the problems of a training batch, on average."""
    problems = recorded(monkeypatch, 10)[::4]
    ours, theirs = [], []
    for unary, beta, distance in problems:
        ours += potts_energy(unary, beta, distance, potts(unary, beta, distance)).tolist()
        theirs += [swaps(u.double().numpy(), beta, d.double().numpy()) for u, d in zip(unary, distance, strict=True)]
    gap = np.array(ours) - np.array(theirs)
    assert gap.mean() < 0.002 * np.abs(theirs).mean()
    assert (gap < 1e-4).mean() > 0.8


def test_every_turn_lowers_the_energy() -> None:
    unary, distance = torch.rand(8, 4, 4, 5), (1 - torch.eye(5)).expand(8, -1, -1)
    label = torch.randint(5, (8, 4, 4))
    before = potts_energy(unary, 0.3, distance, label)
    for parity in (0, 1):
        label = chains(unary, 0.3 * distance, label, parity)
        after = potts_energy(unary, 0.3, distance, label)
        assert (after <= before + 1e-5).all()
        before = after


@pytest.mark.parametrize(("m", "seed"), [(6, 0), (6, 1), (10, 2)])
def test_rounds_equal_a_loop(m: int, seed: int) -> None:
    """Parts do not disturb each other: the batch is each part by itself."""
    maps, ratio, start = part(m, seed=seed)
    found = comixup_masks(maps, ratio, start)
    for k in range(len(maps)):
        np.testing.assert_allclose(found[k].numpy(), by_loops(maps[k], ratio[k], start[k]), atol=1e-6)


def test_masks_are_shares_and_inputs_are_spread() -> None:
    maps, ratio, start = part(20, 32, parts=2)
    masks = comixup_masks(maps, ratio, start)
    torch.testing.assert_close(masks.sum(4), torch.ones(2, 20, 4, 4))
    assert set(masks.unique().tolist()) <= {0.0, 0.5, 1.0}
    assert (masks.sum((1, 2, 3)) > 0).all()  # every input is shown somewhere
    cost = -torch.rand(2, 4, 4, 20)
    assert (objective(cost, masks) < objective(cost, F.one_hot(torch.zeros_like(start), 20).float())).all()


def test_images_and_labels_follow_the_masks() -> None:
    maps, ratio, start = part(6)
    masks = comixup_masks(maps, ratio, start)
    plain = torch.arange(6.0).view(1, 6, 1, 1, 1).expand(3, -1, 3, 16, 16)
    mixed, targets = comixup_mix(plain, torch.eye(6).expand(3, -1, -1), masks)
    shown = masks.repeat_interleave(4, 2).repeat_interleave(4, 3)
    torch.testing.assert_close(mixed[:, :, 0], shown @ torch.arange(6.0))
    torch.testing.assert_close(targets, shown.mean((2, 3)))
    textured = torch.rand(3, 6, 3, 16, 16)
    mixed, _ = comixup_mix(textured, torch.eye(6).expand(3, -1, -1), masks)
    torch.testing.assert_close(mixed, torch.einsum("pjhwi,pichw->pjchw", shown, textured))


def test_outputs_of_the_same_inputs_avoid_different_ones() -> None:
    shows = torch.tensor([[1, 0, 1], [1, 0, 1], [0, 1, 0], [0, 1, 0], [1, 1, 1]]).bool()
    expected = torch.tensor([[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]).bool()
    assert torch.equal(avoided_inputs(shows[None])[0], expected)


def test_compatibility_of_images_as_small_as_the_region() -> None:
    """On images as small as the region all places are one; the authors' code would divide by zero."""
    torch.testing.assert_close(compatibility(torch.rand(2, 5, 8, 8)), 0.999 * torch.eye(5).expand(2, -1, -1))


def test_recipe_has_the_published_settings() -> None:
    tiny = named("tiny-imagenet/co-mixup")
    assert (tiny.saliency, tiny.alpha, tiny.clean, tiny.batch_size, tiny.members) == ("co-mixup", 2.0, 1.0, 100, 1)


def test_a_batch_that_does_not_divide_into_parts_raises() -> None:
    with pytest.raises(UserError, match="batch_size"):
        named("digits/co-mixup").replace(batch_size=97)
