"""Labels of least energy on a grid, for a batch of grids at once.

Up to 8 x 8 blocks the minimum is exact: dynamic programming over a frontier, one label per row of the grid, which moves
block by block. Above, strips of rows and strips of columns are minimised in turn in the same way, given their
neighbours: no turn raises the energy. It starts from independent strips and from the best coarse labels, and the better
result is taken. (Published code uses alpha-beta swaps, one sample after another.)
"""

import torch
from torch import Tensor

from mixmo.baselines.saliency.energy import Energy

EXACT = 8  # rows of the largest grid that is solved exactly: 3^8 states of the frontier
STRIP = 4  # rows of a strip in larger grids
SWEEPS = 2  # over all strips of columns and of rows


def minimise(energy: Energy, distance_KK: Tensor) -> Tensor:
    """(N, n, n) labels of least energy; of low energy if n > 8."""
    n = energy.unary.shape[1]
    if n <= EXACT:
        return frontier(energy, distance_KK)
    assert n % STRIP == 0, f"{n} rows are no multiple of {STRIP}"
    independent = strips(energy, distance_KK, torch.zeros_like(energy.unary[..., 0], dtype=torch.long), slice(None))
    label = torch.cat((independent, coarsely(energy, distance_KK, n // STRIP)))
    twice = Energy(*(torch.cat((part, part)) for part in energy))
    for _ in range(SWEEPS):
        for parity in (0, 1):
            rest = label.transpose(1, 2)
            label = strips(twice.transposed(), distance_KK, rest, slice(parity, None, 2)).transpose(1, 2)
        for parity in (0, 1):
            label = strips(twice, distance_KK, label, slice(parity, None, 2))
    one, two = label.chunk(2)
    lower = energy.of(two, distance_KK) < energy.of(one, distance_KK)
    return torch.where(lower[:, None, None], two, one)


def coarsely(energy: Energy, distance_KK: Tensor, k: int) -> Tensor:
    """The best labels that are the same in squares of k x k blocks."""
    count, n = energy.unary.shape[:2]
    c = n // k
    unary = energy.unary.reshape(count, c, k, c, k, -1).sum((2, 4))
    down = energy.down[:, k - 1 :: k].reshape(count, c - 1, c, k).sum(3)
    right = energy.right[:, :, k - 1 :: k].reshape(count, c, k, c - 1).sum(2)
    label = frontier(Energy(unary, down, right), distance_KK)
    return label.repeat_interleave(k, 1).repeat_interleave(k, 2)


def strips(energy: Energy, distance_KK: Tensor, label_Nnn: Tensor, which: slice) -> Tensor:
    """The chosen strips of rows replaced by their minimum given the others, or alone if all are chosen."""
    n, count = label_Nnn.shape[1], label_Nnn.shape[1] // STRIP
    starts = torch.arange(n, device=label_Nnn.device)[::STRIP][which]
    unary = energy.unary.clone()
    if len(starts) < count:
        unary[:, 1:] += energy.down[..., None] * distance_KK[label_Nnn[:, :-1]] * top(n, label_Nnn)[1:]
        unary[:, :-1] += energy.down[..., None] * distance_KK[label_Nnn[:, 1:]] * top(n, label_Nnn)[1:]
    rows = starts[:, None] + torch.arange(STRIP, device=starts.device)
    part = Energy(
        unary[:, rows].flatten(0, 1), energy.down[:, rows[:, :-1]].flatten(0, 1), energy.right[:, rows].flatten(0, 1)
    )
    solved = frontier(part, distance_KK).unflatten(0, (len(label_Nnn), len(starts)))
    label_Nnn = label_Nnn.clone()
    label_Nnn[:, rows] = solved
    return label_Nnn


def top(n: int, like: Tensor) -> Tensor:
    """(n, 1, 1) one where a row is the first of a strip."""
    return (torch.arange(n, device=like.device) % STRIP == 0).float()[:, None, None]


def frontier(energy: Energy, distance_KK: Tensor) -> Tensor:
    """(N, h, w) labels of least energy, exactly, in O(h w K^(h + 1)).

    V[x_0 .. x_{h-1}] is the least energy of all blocks passed so far, given the latest label x_r in each row. A step to
    the next block (r, c) replaces the label of (r, c - 1), which is minimised out, by its own.
    """
    count, h, w, labels = energy.unary.shape
    table, back = energy.unary.new_zeros(count, labels**h), []
    for c in range(w):
        for r in range(h):
            best = table.view(count, labels**r, labels, -1)
            if c > 0:
                best, choice = minimise_out(best, energy.right[:, r, c - 1, None, None] * distance_KK)
                back.append(choice.view(count, -1))
            best = best + energy.unary[:, r, c, None, :, None]
            if r > 0:
                pair = (energy.down[:, r - 1, c, None, None] * distance_KK)[:, None, :, :, None]
                best = best.view(count, labels ** (r - 1), labels, labels, -1) + pair
            table = best.view(count, -1)
    return trace(table.argmin(1), back, h, w, labels)


def minimise_out(table: Tensor, pair_NKK: Tensor) -> tuple[Tensor, Tensor]:
    """min over x of V[.., x, ..] + w d(x, y) for every y, and which x it was."""
    best = table[:, :, :1] + pair_NKK[:, None, 0, :, None]
    choice = torch.zeros_like(best, dtype=torch.uint8)
    for x in range(1, pair_NKK.shape[1]):
        candidate = table[:, :, x : x + 1] + pair_NKK[:, None, x, :, None]
        choice = choice.masked_fill(candidate < best, x)
        best = torch.minimum(best, candidate)
    return best, choice


def trace(state: Tensor, back: list[Tensor], h: int, w: int, labels: int) -> Tensor:
    """From the best last state (N,) back through the choices: the labels (N, h, w)."""
    passed = []
    for c in reversed(range(w)):
        for r in reversed(range(h)):
            place = labels ** (h - 1 - r)
            label = state // place % labels
            passed.append(label)
            if c > 0:
                before = back[(c - 1) * h + r].gather(1, state[:, None])[:, 0].long()
                state = state + (before - label) * place
    return torch.stack(passed[::-1], dim=1).view(-1, w, h).transpose(1, 2)
