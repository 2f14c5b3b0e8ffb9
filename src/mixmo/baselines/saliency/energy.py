"""Energy of a mask of Puzzle-Mix on a grid (Kim et al., ICML 2020, equation 3 and section 4.1).

Each of n x n blocks keeps the share z in {0, 1/2, 1} of the own image; the rest is the partner's:

    E(z) = sum_p u_p(z_p) + sum_{p ~ q} w_pq (z_p - z_q)^2

u is the saliency that is lost, the prior of z given lambda (binomial of two draws), and the cost of the borders between
blocks that does not depend on the neighbour; w is the smoothness beta and the cost of a change of image at this border.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

LABELS = 3
BETA, GAMMA, ETA = 1.2, 0.5, 0.2  # label smoothness, data smoothness, prior: as published for CIFAR and Tiny ImageNet


class Energy(NamedTuple):
    """Shape legend: N samples, n blocks per side, K labels."""

    unary: Tensor  # (N, n, n, K)
    down: Tensor  # (N, n - 1, n): w between a block and the one below it
    right: Tensor  # (N, n, n - 1)

    def transposed(self) -> "Energy":
        return Energy(self.unary.transpose(1, 2), self.right.transpose(1, 2), self.down.transpose(1, 2))

    def of(self, label_Nnn: Tensor, distance_KK: Tensor) -> Tensor:
        """(N,) the energy of these labels."""
        unary = self.unary.gather(3, label_Nnn[..., None]).sum((1, 2, 3))
        down = self.down * distance_KK[label_Nnn[:, :-1], label_Nnn[:, 1:]]
        right = self.right * distance_KK[label_Nnn[:, :, :-1], label_Nnn[:, :, 1:]]
        return unary + down.sum((1, 2)) + right.sum((1, 2))


def shares(device: torch.device) -> Tensor:
    """(K,) the share z of the own image that each label stands for."""
    return torch.arange(LABELS, device=device) / (LABELS - 1)


def squares(device: torch.device) -> Tensor:
    """(K, K) the distance of labels (z_p - z_q)^2."""
    z = shares(device)
    return (z[:, None] - z) ** 2


def puzzle_energy(own_Nnn: Tensor, other_Nnn: Tensor, x_NCss: Tensor, y_NCss: Tensor, lam: Tensor) -> Energy:
    """Energy of mixing x with y: saliency per block, which sums to one; pixels in [0, 1], pooled to s >= n."""
    n = own_Nnn.shape[1]
    beta = BETA / n / 16
    down, right = zip(*(borders(a, b, n) for a in (y_NCss, x_NCss) for b in (y_NCss, x_NCss)), strict=True)
    without = own_Nnn.clone()  # cost of a block that shows the partner: the own saliency, and the partner's borders
    within = other_Nnn.clone()  # and of one that shows the own image
    for axis, (yy, yx, xy, xx) in ((1, down), (2, right)):
        for part, to_y, to_x in ((slice(None, -1), yy + yx, xx + xy), (slice(1, None), yy + xy, xx + yx)):
            at = (slice(None),) * axis + (part,)
            without[at] += beta * GAMMA / 2 * to_y
            within[at] += beta * GAMMA / 2 * to_x
    changes = [beta + beta * GAMMA / 2 * (yx + xy - xx - yy) for yy, yx, xy, xx in (down, right)]
    z = shares(own_Nnn.device)
    unary = torch.lerp(without[..., None], within[..., None], z) + ETA / n**2 * prior(lam)
    return Energy(unary, *changes)


def prior(lam: Tensor) -> Tensor:
    """(K,) -log of the binomial probability that none, one or both of two draws take the own image."""
    return -torch.stack(((1 - lam) ** 2, 2 * lam * (1 - lam), lam**2)).add(1e-8).log()


def borders(a_NCss: Tensor, b_NCss: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Mean absolute difference across each border of n x n blocks, a above or left of it, b below or right of it."""
    k = a_NCss.shape[-1] // n
    down = (a_NCss[:, :, k - 1 : -1 : k] - b_NCss[:, :, k::k]).abs().mean(1)
    right = (a_NCss[..., k - 1 : -1 : k] - b_NCss[..., k::k]).abs().mean(1)
    return F.avg_pool2d(down, (1, k)), F.avg_pool2d(right, (k, 1))
