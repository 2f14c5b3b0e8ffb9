"""Conformal prediction sets: for each sample a set of classes that contains the true one with a chosen probability.

A method scores how badly class k conforms to sample n, s_nk. On n held-out samples the quantile q is the
ceil((n + 1) level)-th smallest score of the true classes; the set of a new sample is {k : s_k <= q}. If held-out and
new samples are exchangeable and q was fitted on no sample that shaped the scores, the true class is in the set with
probability at least `level`, and at most level + 1 / (n + 1) where scores are never equal; on average over samples and
over held-out sets, not for each class alone. p_nk is the softmax of the logits; rank 1 is the most probable class.
A set may be empty: adding the most probable class would give more than the target coverage.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mixmo.utils.registry import Registry

Score = Callable[[Tensor, Tensor, float, int], Tensor]  # (p (N, K), u (N, 1), lam, k_reg) -> (N, K), low conforms

CONFORMAL: Registry[Score] = Registry("conformal method")

LAMBDAS = (0.001, 0.01, 0.1, 0.2, 0.5)  # tried by `tune_raps`, as in the authors' code


@CONFORMAL.add("lac")
def lac(p_NK: Tensor, u_N1: Tensor, lam: float, k_reg: int) -> Tensor:
    """Least ambiguous classifier: 1 - p_nk; the smallest sets on average (Sadinle et al., 2019)."""
    return 1 - p_NK


@CONFORMAL.add("aps")
def aps(p_NK: Tensor, u_N1: Tensor, lam: float, k_reg: int) -> Tensor:
    """Adaptive prediction sets: probability of all more probable classes, and u of its own (Romano et al., 2020).

    With u ~ U(0, 1) for each sample as published; with u = 1 the variant without randomness, whose sets are larger.
    """
    own_NK, order_NK = p_NK.sort(dim=1, descending=True, stable=True)
    score_NK = own_NK.cumsum(1) - (1 - u_N1) * own_NK
    return torch.empty_like(score_NK).scatter_(1, order_NK, score_NK)


@CONFORMAL.add("raps")
def raps(p_NK: Tensor, u_N1: Tensor, lam: float, k_reg: int) -> Tensor:
    """Regularised adaptive sets: APS plus lam for every rank beyond k_reg (Angelopoulos et al., 2021)."""
    return aps(p_NK, u_N1, lam, k_reg) + lam * (ranks(p_NK) - k_reg).clamp(min=0).to(p_NK)


def ranks(p_NK: Tensor) -> Tensor:
    """1 for the most probable class of a sample, K for the least; of equal classes the first is ahead."""
    return p_NK.argsort(dim=1, descending=True, stable=True).argsort(1) + 1


@dataclass(frozen=True)
class Conformal:
    """A fitted conformal predictor."""

    method: str  # name in CONFORMAL
    level: float  # target coverage, 1 - alpha in the literature
    quantile: float
    randomised: bool = False
    lam: float = 0.0  # lambda of RAPS
    k_reg: int = 0  # rank beyond which RAPS penalises

    def sets(self, logits_NK: Tensor, u_N: Tensor | None = None) -> Tensor:
        """Return which classes are in the sets, bool (N, K); `u_N`: uniform numbers, by default torch's generator's."""
        return self.scores(logits_NK, u_N) <= self.quantile

    def scores(self, logits_NK: Tensor, u_N: Tensor | None = None) -> Tensor:
        """How badly each class conforms to each sample, float64 (N, K)."""
        p_NK = logits_NK.double().softmax(1)
        if not self.randomised:
            u_N = p_NK.new_ones(len(p_NK))
        elif u_N is None:
            u_N = torch.rand(len(p_NK), dtype=torch.float64)
        return CONFORMAL[self.method](p_NK, u_N.to(p_NK)[:, None], self.lam, self.k_reg)


def fit_conformal(
    logits_NK: Tensor,
    labels_N: Tensor,
    level: float = 0.9,
    method: str = "lac",
    *,
    randomised: bool = False,
    lam: float = 0.0,
    k_reg: int = 0,
    u_N: Tensor | None = None,
) -> Conformal:
    """Fit the quantile for a target coverage to held-out logits of the ensemble, unchecked.

    >>> logits = torch.eye(3).repeat(10, 1)  # the true class has probability e / (e + 2) each time
    >>> fitted = fit_conformal(logits, torch.tensor([0, 1, 2] * 10), level=0.9)
    >>> round(1 - fitted.quantile, 4), fitted.sets(torch.eye(3)[:1]).tolist()
    (0.5761, [[True, False, False]])
    """
    unfitted = Conformal(method, level, math.nan, randomised, lam, k_reg)
    own_N = unfitted.scores(logits_NK, u_N).gather(1, labels_N[:, None])[:, 0]
    return replace(unfitted, quantile=_quantile(own_N, level))


def tune_raps(logits_NK: Tensor, labels_N: Tensor, level: float, u_N: Tensor | None = None) -> tuple[float, int]:
    """Choose lam and k_reg of RAPS as its authors do, on samples other than those of the quantile.

    k_reg is the `level` quantile of the true classes' ranks; lam that of `LAMBDAS` with the smallest sets on average,
    which are randomised sets if there are uniform numbers `u_N` for them.
    """
    rank_N = ranks(logits_NK.softmax(1)).gather(1, labels_N[:, None])[:, 0]
    k_reg = round(_quantile(rank_N.double(), level))
    randomised = u_N is not None

    def size(lam: float) -> float:
        fitted = fit_conformal(logits_NK, labels_N, level, "raps", randomised=randomised, lam=lam, k_reg=k_reg, u_N=u_N)
        return fitted.sets(logits_NK, u_N).sum(1).double().mean().item()

    return min(LAMBDAS, key=size), k_reg


def fewest_for_level(level: float) -> int:
    """Smallest number of held-out samples that has a quantile of this level.

    >>> fewest_for_level(0.9), fewest_for_level(0.99)
    (9, 99)
    """
    return math.ceil(round(level / (1 - level), 9))


def _quantile(own_N: Tensor, level: float) -> float:
    """The ceil((n + 1) level)-th smallest."""
    # Rounding must not push a product such as 10 * 0.9 beyond the integer that it is.
    place = math.ceil(round((len(own_N) + 1) * level, 9))
    return own_N.sort()[0][place - 1].item()
