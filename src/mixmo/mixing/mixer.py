"""How M inputs are mixed: the ratios, the mask and the loss weights (paper, sections 3.2, 3.3 and 3.5)."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from mixmo.mixing.masks import MASKS
from mixmo.mixing.pairing import draw_order
from mixmo.mixing.targets import check_values
from mixmo.mixing.types import Mix
from mixmo.utils.errors import UserError, check_number, check_whole, first_line, quoted, unknown
from mixmo.utils.rng import draw_gamma
from mixmo.utils.tensors import check_dense

UNMASKED = {
    "linear": "Linear-MixMo: the encodings interpolated by kappa; no mask.",
    "sum": "MIMO: the encodings summed, kappa = 1/M; no mask.",
    "concat": "Aggregated Learning: the encodings concatenated along the channels; no mask.",
}
ASSOCIATIONS = ("own", "random", "predominant", "interpolated")
SMALLEST_R = 0.1  # far below, all kappa^(1/r) of a sample underflow, and the weights are 0 / 0
LATE = 1.5  # progress of a training that goes on for longer than planned; beyond, it is a number of steps or epochs


class MixDraws(NamedTuple):
    """All random numbers of one batch's mixing, drawn first, so that what follows is a pure function of them."""

    gamma: Tensor  # (M, N) standard gamma variables of shape alpha; normalised, they are Dirichlet(alpha)
    mask: Tensor  # (N, P) uniform: the mask
    sample: Tensor  # (N,) uniform: the random association of inputs and heads
    batch: Tensor  # (2, N) uniform, constant within a batch: mask or linear mixing; the member k inside of the region


@dataclass(frozen=True)
class Mixer:
    """Pair a batch with itself and draw how its inputs are mixed: `mix = mixer(images, labels, progress)`.

    The coefficients of the mixing block (equation 2), with kappa ~ Dirichlet(alpha) per sample, are

        1_M for member k and (1 - 1_M) kappa_i / (1 - kappa_k) for the others       with probability p (Cut-MixMo),
        kappa_i                                                                     otherwise (Linear-MixMo),

    and the loss weights are w_r(kappa_i) of the realised kappa (equation 3).

    Args:
        mask: Kind of mask ("cut", ...; `mixmo list masks`), "linear" for Linear-MixMo, "sum" for MIMO.
        members: Inputs per sample, M.
        alpha: Concentration of the Dirichlet distribution of the ratios.
        p: Probability of a mask rather than linear mixing, per batch; falls to 0 over the last twelfth of training.
        r: Root of the loss weights w_r; `math.inf` for equal weights.
        stride: Image pixels per position of the encoded features, `net.stride`: masks are drawn at that resolution.
            Masks of another resolution are resized in the network, and then differ slightly from their loss weights.
        association: Which head predicts which input: its "own"; with one encoder for all (table 3) at "random", or
            "predominant" (head 0 predicts the most visible one); with one head for all, "interpolated" labels.

    Raises:
        UserError: If a name is unknown or a number out of range.
    """

    mask: str = "cut"
    members: int = 2
    alpha: float = 2.0
    p: float = 0.5
    r: float = 3.0
    stride: int = 1
    association: str = "own"

    def __post_init__(self) -> None:
        if self.mask not in (*MASKS, *UNMASKED):
            raise unknown("mask", self.mask, [*MASKS, *UNMASKED])
        if self.association not in ASSOCIATIONS:
            raise unknown("association", self.association, ASSOCIATIONS)
        check_whole("members", self.members)
        check_whole("stride", self.stride)
        for name in ("alpha", "p", "r"):
            check_number(name, getattr(self, name))
        for name, valid, wanted in (
            ("alpha", 0 < self.alpha < math.inf, "a number above 0"),
            ("p", 0 <= self.p <= 1, "a probability, from 0 (linear mixing only) to 1 (masks only)"),
            ("r", self.r >= SMALLEST_R, f"at least {SMALLEST_R} (inf: equal weights)"),
        ):
            if not valid:
                raise UserError(f"{name} = {getattr(self, name)}; give {wanted}")

    def __call__(
        self, images: Tensor, labels: Tensor, progress: float = 0.0, generator: Generator | None = None
    ) -> Mix:
        """Mix a batch with itself, on its device.

        Args:
            images: Normalised images, (N, C, H, W).
            labels: Class indices (N,) or soft targets (N, K).
            progress: Share of training done, from 0 to 1: `step / steps`. The probability of a mask depends on it.
            generator: Source of the random numbers, on the device of the images; torch's own by default.

        Returns:
            The mixed batch.

        Raises:
            UserError: If images and labels do not fit, or `progress` is not a share.
        """
        labels = self._check_batch(images, labels, progress, generator)
        n, _, height, width = images.shape
        index_MN = draw_order(self.members, n, device=images.device, generator=generator)  # pairs: M random orders
        draws = self.draw(n, height, width, images.device, generator)
        chance = torch.full((), self.chance(progress), device=images.device)  # a copy from the host would sync
        coefficients = self.coefficients(draws, chance, height, width)
        return self.assemble(images[index_MN], labels[index_MN], coefficients, draws)

    def _check_batch(self, images: Tensor, labels: Tensor, progress: float, generator: Generator | None) -> Tensor:
        """Labels as a tensor on the device of the images."""
        check_dense("images", images)
        if images.dim() != 4:
            raise UserError(f"images are a {type(images).__name__} {images.shape}; give (N, C, H, W)")
        try:
            labels = torch.as_tensor(labels, device=images.device)
        except (ValueError, TypeError, RuntimeError) as error:
            raise UserError(f"labels are a {type(labels).__name__} ({first_line(error)}); give a tensor") from error
        check_dense("labels", labels)
        if (
            labels.dim() not in (1, 2)
            or len(labels) != len(images)
            or (labels.dim() == 1 and labels.is_floating_point())
        ):
            given = f"{labels.dtype} of shape {tuple(labels.shape)} for {len(images)} images"
            raise UserError(f"labels are {given}; give one class index (integer) each, or soft targets (N, K)")
        check_values(labels, soft=labels.dim() == 2, classes=None)
        if self.association == "interpolated" and labels.dim() == 1:
            raise UserError("interpolated labels need soft targets (N, K); give one-hot labels")
        check_number("progress", progress)
        if not isinstance(generator, Generator | None) or (generator and generator.device.type != images.device.type):
            given = quoted(generator) if not isinstance(generator, Generator) else f"one of {generator.device}"
            raise UserError(f"generator = {given}; give a torch.Generator of the images' device, {images.device}")
        if not 0 <= progress < LATE:
            raise UserError(f"progress = {progress}; give the share of training done, from 0 to 1: step / steps")
        return labels

    def chance(self, progress: float) -> float:
        """Probability of a mask at this point of training (appendix "Pseudo Code"): p, at the end linearly to 0.

        >>> tuple(round(Mixer(p=0.5).chance(epoch / 300), 2) for epoch in (1, 275, 276, 299, 300))
        (0.5, 0.5, 0.48, 0.02, 0.0)
        """
        return self.p * min(1.0, max(0.0, 12 * (1 - progress)))

    def draw(
        self, n: int, height: int, width: int, device: torch.device, generator: Generator | None = None, ghosts: int = 1
    ) -> MixDraws:
        """Draw the random numbers for n samples of height x width pixels, in `ghosts` batches."""
        h, w = grid(height, width, self.stride)
        numbers = MASKS[self.mask].uniforms(h, w) if self.mask in MASKS else 0
        gamma = draw_gamma(self.alpha, self.members, n, device=device, generator=generator)
        mask, sample, batch = (
            torch.rand(size, device=device, dtype=gamma.dtype, generator=generator)
            for size in ((n, numbers), (n,), (2, ghosts))
        )
        return MixDraws(gamma, mask, sample, batch.repeat_interleave(n // ghosts, 1))

    def coefficients(self, draws: MixDraws, chance: Tensor, height: int, width: int) -> Tensor:
        """Share of each member at each position, (M, N, 1, h, w); the shares sum to one over the members.

        With a mask, a region of member k over a renormalised linear mix of the others (section 3.5; for M = 2 this is
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
        """Put together images (M, N, ...), targets (M, N) or (M, N, K) and the weights of the realised kappa."""
        kappa_MN = coefficients.mean((2, 3, 4))
        if self.association == "interpolated":
            return Mix(images, coefficients, (kappa_MN[..., None] * targets).sum(0, True), kappa_MN.sum(0, True))
        if self.association != "own":
            key = -kappa_MN if self.association == "predominant" else cyclic_keys(draws.sample, self.members)
            order_MN = key.argsort(dim=0, stable=True)
            kappa_MN = kappa_MN.gather(0, order_MN)
            index = order_MN if targets.dim() == 2 else order_MN[..., None].expand_as(targets)
            targets = targets.gather(0, index)
        return Mix(images, coefficients, targets, loss_weights(kappa_MN, self.r))


def loss_weights(kappa_MN: Tensor, r: float) -> Tensor:
    """w_r(kappa_i) = M kappa_i^(1/r) / sum_j kappa_j^(1/r) (equation 3 and section 3.5); r = inf gives 1.

    >>> loss_weights(torch.tensor([[0.2], [0.8]]), r=1.0).flatten().tolist()
    [0.4000000059604645, 1.600000023841858]
    """
    root = kappa_MN ** (0.0 if math.isinf(r) else 1 / r)
    return len(kappa_MN) * root / root.sum(0)


def cyclic_keys(u_N: Tensor, members: int) -> Tensor:
    """Sort keys (M, N) that shift the members cyclically by a uniform number of places, per sample."""
    return (torch.arange(members, device=u_N.device)[:, None] + u_N * members) % members


def grid(height: int, width: int, stride: int) -> tuple[int, int]:
    """Height and width of the features of an encoder with this stride.

    >>> grid(64, 64, 2), grid(7, 7, 2)
    ((32, 32), (4, 4))
    """
    return -(-height // stride), -(-width // stride)
