"""Labels of low energy on a grid with many labels, for a batch of grids at once.

    E(x) = sum_p u_p(x_p) + beta sum_{p ~ q} d(x_p, x_q)

Rows, then columns, every other one at a time, are minimised exactly given the rest (Viterbi), which never raises the
energy. Every grid starts from its best labels block by block and from its best constant label; the better result is
taken. (Published code uses alpha-beta swaps, one grid after another.)
"""

import torch
from torch import Tensor

SWEEPS = 2


def potts(unary_BnnL: Tensor, beta: float, distance_BLL: Tensor) -> Tensor:
    """(B, n, n) labels of low energy."""
    alone = unary_BnnL.argmin(3)
    constant = unary_BnnL.sum((1, 2)).argmin(1)[:, None, None].expand_as(alone)
    label, unary, distance = torch.cat((alone, constant)), unary_BnnL.repeat(2, 1, 1, 1), distance_BLL.repeat(2, 1, 1)
    pair = beta * distance
    across = unary.transpose(1, 2)
    for _ in range(SWEEPS):
        for parity in (0, 1):
            label = chains(unary, pair, label, parity)
        for parity in (0, 1):
            label = chains(across, pair, label.transpose(1, 2), parity).transpose(1, 2)
    one, two = label.chunk(2)
    lower = potts_energy(unary_BnnL, beta, distance_BLL, two) < potts_energy(unary_BnnL, beta, distance_BLL, one)
    return torch.where(lower[:, None, None], two, one)


def potts_energy(unary_BnnL: Tensor, beta: float, distance_BLL: Tensor, label_Bnn: Tensor) -> Tensor:
    """(B,) the energy of these labels."""
    batch = torch.arange(len(label_Bnn), device=label_Bnn.device)[:, None, None]
    down = distance_BLL[batch, label_Bnn[:, :-1], label_Bnn[:, 1:]].sum((1, 2))
    right = distance_BLL[batch, label_Bnn[:, :, :-1], label_Bnn[:, :, 1:]].sum((1, 2))
    return unary_BnnL.gather(3, label_Bnn[..., None]).sum((1, 2, 3)) + beta * (down + right)


def chains(unary_BnnL: Tensor, pair_BLL: Tensor, label_Bnn: Tensor, parity: int) -> Tensor:
    """The even or the odd rows replaced by their minimum given the others."""
    batch = torch.arange(len(label_Bnn), device=label_Bnn.device)[:, None, None]
    near = pair_BLL[batch, label_Bnn]  # (B, n, n, L): cost of each block's label for a neighbour
    total = unary_BnnL[:, parity::2].clone()
    above, below = near[:, 1 - parity : -1 : 2], near[:, 1 + parity :: 2]
    total[:, 1 - parity :][:, : above.shape[1]] += above
    total[:, : below.shape[1]] += below
    best, choices = total[:, :, 0], []
    for c in range(1, total.shape[2]):
        best, choice = (best[..., None] + pair_BLL[:, None]).min(2)
        best = best + total[:, :, c]
        choices.append(choice)
    labels = [best.argmin(2, keepdim=True)]
    for choice in reversed(choices):
        labels.append(choice.gather(2, labels[-1]))
    label_Bnn = label_Bnn.clone()
    label_Bnn[:, parity::2] = torch.cat(labels[::-1], dim=2)
    return label_Bnn
