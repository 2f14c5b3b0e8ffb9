"""Transport of an image's blocks, so that salient ones are where the mask shows them (Puzzle-Mix, section 4.2).

    cost_ij = t_eps |i - j|^2 - s_i z_j,

with |i - j| in units of the grid's side, s_i the saliency of block i, z_j whether the mask shows place j at all. Each
block proposes to its cheapest place, each place accepts the cheapest proposal, and rejected blocks propose elsewhere:
the result is a stable matching.
"""

import torch
from torch import Tensor

EPS = 0.8  # t_eps as published


def plan(shown_NT: Tensor, saliency_NT: Tensor, side: int) -> Tensor:
    """(N, T) which block each of T = side * side places gets, after `side` rounds as published.

    A place that the mask hides, or that no block gains from, keeps its own block.
    """
    cost = EPS * distances(side, shown_NT.device) - saliency_NT[:, :, None] * shown_NT[:, None, :]
    places = shown_NT.shape[1]
    blocks = torch.arange(places, device=cost.device).expand(len(cost), -1)
    winner = blocks
    for _ in range(side):
        value, place = cost.min(2)
        price = torch.zeros_like(value).scatter_reduce(1, place, value, "amin")  # of the best proposal, if it gains
        best = (value < 0) & (value == price.gather(1, place))
        proposal = torch.where(best, blocks, places)  # of equal ones the first
        winner = torch.full_like(blocks, places).scatter_reduce(1, place, proposal, "amin")
        rejected = winner.gather(1, place) != blocks
        cost = cost.scatter_add(2, place[..., None], rejected.to(cost.dtype)[..., None])  # |s z| <= 1: never again
    return torch.where(winner < places, winner, blocks)


def distances(side: int, device: torch.device) -> Tensor:
    """(T, T) squared distances of the places of a grid, in units of its side."""
    axis = torch.arange(side, device=device)
    at = torch.cartesian_prod(axis, axis).float()
    return ((at[:, None] - at) ** 2).sum(2) / (side - 1) ** 2


def move(images_NCHW: Tensor, source_NT: Tensor, side: int) -> Tensor:
    """Images with their blocks moved: place j shows block source[j]."""
    n, channels, height, width = images_NCHW.shape
    tiles = images_NCHW.reshape(n, channels, side, height // side, side, width // side)
    tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (N, T, C, h, w)
    moved = tiles[torch.arange(n, device=source_NT.device)[:, None], source_NT]
    moved = moved.view(n, side, side, *moved.shape[2:]).permute(0, 3, 1, 4, 2, 5)
    return moved.reshape(images_NCHW.shape)
