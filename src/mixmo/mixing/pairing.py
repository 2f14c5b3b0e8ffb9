"""Which images are mixed: batch repetition, one shuffle per member (paper, section 3.1, "Implementation details")."""

import torch
from torch import Generator, Tensor


def steps_per_epoch(samples: int, batch_size: int, repetition: int) -> int:
    """Number of full batches in one pass over the data, each sample seen b times.

    >>> [steps_per_epoch(50_000, 64, b) for b in (1, 2, 4)]
    [781, 1562, 3125]
    """
    return samples // (batch_size // repetition)


def draw_order(*shape: int, device: torch.device, generator: Generator | None = None, ghosts: int = 1) -> Tensor:
    """Draw permutations of the last dimension, all equally likely; with ghost batches, within each of them.

    Not for the compiled part of a step: a sort compiles for seconds, and for two minutes where the compiler combines it
    with a reduction and tunes both.
    """
    # float32 whatever torch's default: in bfloat16 many would be equal, and keep their order.
    u = torch.rand(shape, device=device, dtype=torch.float32, generator=generator)
    order = u.view(*shape[:-1], ghosts, -1).argsort(dim=-1)
    first = torch.arange(ghosts, device=device)[:, None] * order.shape[-1]
    return (order + first).flatten(-2)


def pair(unique_n: Tensor, repetition: int, order_MN: Tensor, same_N: Tensor | None = None, ghosts: int = 1) -> Tensor:
    """Indices (M, N) of each member's images: the n = N / b samples, each b times, in M independent orders.

    An image may be mixed with itself. With MIMO's input repetition, the samples `same_N` show one image to all members.
    `order_MN` comes from `draw_order`. Ghost batches have n / `ghosts` samples each.
    """
    batch_N = unique_n.view(ghosts, -1).repeat(1, repetition).flatten()
    index_MN = batch_N[order_MN]
    return index_MN if same_N is None else torch.where(same_N, index_MN[:1], index_MN)
