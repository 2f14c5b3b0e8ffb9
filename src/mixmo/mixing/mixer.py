"""How M inputs are mixed: draw the ratios and the mask, weight the losses (paper, sections 3.2, 3.3 and appendix C)."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from mixmo.mixing.masks import MASKS
from mixmo.mixing.pairing import draw_order, pair
from mixmo.mixing.types import Mix
from mixmo.utils.errors import UserError, check_members, check_number, check_whole, unknown
from mixmo.utils.rng import draw_gamma

UNMASKED = {
    "linear": "Linear-MixMo: the encodings interpolated by kappa; no mask.",
    "sum": "MIMO: the encodings summed, kappa = 1/M; no mask.",
    "concat": "Aggregated Learning: the encodings concatenated along the channels; no mask.",
}
LATE = 1.5  # of a training that goes on for longer than was said; beyond, somebody counts steps or epochs
SMALLEST_R = 0.1  # far below, all kappa^(1/r) of a sample underflow, and the weights are 0 / 0
ASSOCIATIONS = ("own", "random", "predominant", "interpolated")


class MixDraws(NamedTuple):
    """All the randomness of one batch's mixing. Drawn apart from its use, so that the use is a pure function."""

    gamma: Tensor  # (M, N) standard gamma variables of shape alpha; normalised, they are Dirichlet(alpha)
    mask: Tensor  # (N, P) uniform numbers of the mask
    sample: Tensor  # (N,) uniform: the random association of inputs and heads
    batch: Tensor  # (2, N) uniform, one each a batch: patch or linear; the member k that shows in the region


@dataclass(frozen=True)
class Mixer:
    """Pairs a batch with itself and draws how its inputs are mixed: `mix = mixer(images, labels, progress)`.

    mask: the kind of region ("cut", ...; `mixmo list masks`), "linear" for Linear-MixMo, "sum" for MIMO.
    alpha: kappa ~ Dirichlet(alpha), per sample.
    p: probability of a mask rather than linear mixing, per batch; falls to 0 over the last twelfth of training.
    r: root of the loss weights w_r.
    stride: image pixels a position of the encoded features, `net.stride`: masks are drawn at that resolution. Others
        are resized in the network, which then sees a little more or less of an image than its loss weight counts.
    association: which head answers for which input: its "own"; with one encoder for all (paper, table 3) at "random",
        or "predominant" (head 0 the most visible); with one head for all, "interpolated" labels.
    """

    mask: str = "cut"
    members: int = 2
    alpha: float = 2.0
    p: float = 0.5
    r: float = 3.0
    stride: int = 1
    association: str = "own"

    def __post_init__(self) -> None:
        check_members(self.members)
        check_whole("stride", self.stride)
        for name in ("alpha", "p", "r"):
            check_number(name, getattr(self, name))
        if not isinstance(self.mask, str):
            raise UserError(f'mask = {self.mask!r}; give its name, such as "cut" (`mixmo list masks`)')
        if self.mask not in MASKS and self.mask not in UNMASKED:
            raise unknown("mask", self.mask, [*MASKS, *UNMASKED])
        if not 0 <= self.p <= 1:
            raise UserError(f"p = {self.p} is no probability; take one from 0 (linear mixing only) to 1 (masks only)")
        if not 0 < self.alpha < math.inf:
            raise UserError(
                f"alpha = {self.alpha}; the Dirichlet distribution of the ratios needs alpha > 0, and finite"
            )
        if not self.r >= SMALLEST_R:
            raise UserError(f"r = {self.r}; the root of the loss weights must be {SMALLEST_R} or more (.inf: none)")
        if self.association not in ASSOCIATIONS:
            raise unknown("association", self.association, ASSOCIATIONS)

    def __call__(
        self, images: Tensor, labels: Tensor, progress: float = 0.0, generator: Generator | None = None
    ) -> Mix:
        """A batch (N, C, H, W) with labels (N,) or soft targets (N, K) becomes a Mix, drawn on its device.

        `progress` is the share of training done, from 0 to 1: p depends on it.
        """
        if not isinstance(images, Tensor) or images.dim() != 4 or 0 in images.shape:
            shape = tuple(getattr(images, "shape", ()))
            raise UserError(f"images are a {type(images).__name__} {shape}; give a tensor (N, C, H, W), none of them 0")
        check_number("progress", progress)
        if not 0 <= progress < LATE:
            raise UserError(f"progress = {progress}; give the share of training done, from 0 to 1: step / steps")
        n, (height, width) = len(images), images.shape[-2:]
        try:
            labels = torch.as_tensor(labels, device=images.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"labels are no tensor ({error}); give a class index each, or soft targets") from error
        if labels.dim() == 0 or len(labels) != n:
            raise UserError(f"{labels.numel()} labels for {n} images; give one each, or soft targets (N, K)")
        order_MN = draw_order(self.members, n, device=images.device, generator=generator)
        index_MN = pair(torch.arange(n, device=images.device), 1, order_MN)
        draws = self.draw(n, height, width, images.device, generator)
        chance = torch.full((), self.chance(progress), device=images.device)  # a copy from the host would wait
        coefficients = self.coefficients(draws, chance, height, width)
        return self.assemble(images[index_MN], labels[index_MN], coefficients, draws)

    def chance(self, progress: float) -> float:
        """Probability of a mask at this point of training (pseudocode of the paper): p, then linearly to 0.

        >>> [round(Mixer(p=0.5).chance(epoch / 300), 2) for epoch in (1, 275, 276, 299, 300)]
        [0.5, 0.5, 0.48, 0.02, 0.0]
        """
        return self.p * min(1.0, max(0.0, 12 * (1 - progress)))

    def draw(
        self,
        n: int,
        height: int,
        width: int,
        device: torch.device,
        generator: Generator | None = None,
        ghosts: int = 1,
    ) -> MixDraws:
        """The randomness for n samples, in so many batches, whose images are height x width."""
        h, w = grid(height, width, self.stride)
        numbers = MASKS[self.mask].uniforms(h, w) if self.mask in MASKS else 0
        gamma = draw_gamma(self.alpha, self.members, n, device=device, generator=generator)
        mask, sample, batch = (
            torch.rand(size, device=device, dtype=gamma.dtype, generator=generator)
            for size in ((n, numbers), (n,), (2, ghosts))
        )
        return MixDraws(gamma, mask, sample, batch.repeat_interleave(n // ghosts, 1))

    def coefficients(self, draws: MixDraws, chance: Tensor, height: int, width: int) -> Tensor:
        """The share of each member at each position, (M, N, 1, h, w); they sum to one over the members.

        With a mask, a region of member k over a renormalised linear mix of the others (appendix C; for M = 2 this is
        the binary mask of equation 2, and k the choice of inside or outside).
        """
        members = self.members
        kappa_MN = draws.gamma / draws.gamma.sum(0)
        if self.mask in ("sum", "concat") or members == 1:
            kappa_MN = torch.full_like(kappa_MN, 1 / members)
        linear = kappa_MN[:, :, None, None, None]
        if self.mask in UNMASKED or members == 1:
            return linear
        h, w = grid(height, width, self.stride)
        k_N = (draws.batch[1] * members).long().clamp_max(members - 1)
        kappa_N = kappa_MN.gather(0, k_N[None])[0]
        region = MASKS[self.mask].draw(kappa_N, draws.mask, h, w)[None, :, None]
        inside = (torch.arange(members, device=k_N.device)[:, None] == k_N)[:, :, None, None, None]
        others = (linear * ~inside) / (linear * ~inside).sum(0)
        masked = torch.where(inside, region, others * (1 - region))
        return torch.where((draws.batch[0] < chance)[:, None, None, None], masked, linear)

    def assemble(self, images: Tensor, targets: Tensor, coefficients: Tensor, draws: MixDraws) -> Mix:
        """The Mix of images (M, N, ...) and targets (M, N) or (M, N, K), with kappa as realised by the mask."""
        kappa_MN = coefficients.mean((2, 3, 4))
        if self.association == "interpolated":
            if targets.dim() == 2:
                raise UserError("interpolated labels need soft targets (N, K); give one-hot labels")
            return Mix(images, coefficients, (kappa_MN[..., None] * targets).sum(0, True), kappa_MN.sum(0, True))
        if self.association != "own":
            key = -kappa_MN if self.association == "predominant" else turned(draws.sample, self.members)
            order_MN = key.argsort(dim=0, stable=True)
            kappa_MN = kappa_MN.gather(0, order_MN)
            index = order_MN if targets.dim() == 2 else order_MN[..., None].expand_as(targets)
            targets = targets.gather(0, index)
        return Mix(images, coefficients, targets, loss_weights(kappa_MN, self.r))


def loss_weights(kappa_MN: Tensor, r: float) -> Tensor:
    """w_r(kappa_i) = M kappa_i^(1/r) / sum_j kappa_j^(1/r) (equation 3 and appendix C); r = inf gives 1.

    >>> loss_weights(torch.tensor([[0.2], [0.8]]), r=1.0).flatten().tolist()
    [0.4000000059604645, 1.600000023841858]
    """
    root = kappa_MN ** (0.0 if math.isinf(r) else 1 / r)
    return len(kappa_MN) * root / root.sum(0)


def turned(u_N: Tensor, members: int) -> Tensor:
    """Sort keys (M, N) that turn the members by a uniformly drawn number of places, per sample."""
    return (torch.arange(members, device=u_N.device)[:, None] + u_N * members) % members


def grid(height: int, width: int, stride: int) -> tuple[int, int]:
    """Positions of the features of an encoder with this stride.

    >>> grid(64, 64, 2), grid(7, 7, 2)
    ((32, 32), (4, 4))
    """
    return -(-height // stride), -(-width // stride)
