"""How much predictors differ: the members of a network, or all members of several networks, as P predictors.

A measure maps logits (P, N, K) and labels (N,) to a float64 matrix (P, P) over pairs; `pair_mean` averages it. For
predictors i and j, the samples are counted as n_11 (both correct), n_00 (both wrong), n_10 (only i correct) and n_01
(only j). Every measure is finite: its docstring defines it where the formula is 0/0.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mixmo.utils.registry import Registry

Measure = Callable[[Tensor, Tensor], Tensor]  # (logits (P, N, K), labels (N,)) -> (P, P) float64

DIVERSITY: Registry[Measure] = Registry("diversity measure", taken=("own",))


def pair_mean(matrix_PP: Tensor) -> Tensor:
    """Average a measure over all pairs of different predictors, in both orders: sum_{i != j} d_ij / (P (P - 1))."""
    off_diagonal_PP = ~torch.eye(len(matrix_PP), dtype=torch.bool, device=matrix_PP.device)
    return matrix_PP[off_diagonal_PP].mean()


@DIVERSITY.add("ratio_error")
def ratio_error(logits_PNK: Tensor, labels_N: Tensor) -> Tensor:
    """Ratio-error d_re: samples where only one of the two is wrong, over samples where both are (paper, section 4.2.2).

    (n_10 + n_01) / n_00 (Aksela, 2003). If they are never both wrong: 2 (n_10 + n_01), as if they had been half a time,
    a convention of the authors' code; so 0 where there is no error at all.
    """
    _, n_10, n_01, n_00 = _counts(logits_PNK, labels_N)
    return (n_10 + n_01) / n_00.clamp(min=0.5)


@DIVERSITY.add("agreement")
def agreement(logits_PNK: Tensor, labels_N: Tensor) -> Tensor:
    """Share of samples for which the two predict the same class, correct or wrong."""
    class_PN = logits_PNK.argmax(2)
    return torch.stack([(class_PN == class_N).double().mean(1) for class_N in class_PN])


@DIVERSITY.add("disagreement")
def disagreement(logits_PNK: Tensor, labels_N: Tensor) -> Tensor:
    """Share of samples for which the two predict different classes: 1 - agreement."""
    return 1 - agreement(logits_PNK, labels_N)


@DIVERSITY.add("q_statistic")
def q_statistic(logits_PNK: Tensor, labels_N: Tensor) -> Tensor:
    """Yule's Q of the two's errors: 1 if they always coincide, 0 if independent, -1 if never.

    (n_11 n_00 - n_10 n_01) / (n_11 n_00 + n_10 n_01); 0 if the denominator is 0, as when one of the two is always
    correct.
    """
    n_11, n_10, n_01, n_00 = _counts(logits_PNK, labels_N)
    return _ratio(n_11 * n_00 - n_10 * n_01, n_11 * n_00 + n_10 * n_01)


@DIVERSITY.add("error_correlation")
def error_correlation(logits_PNK: Tensor, labels_N: Tensor) -> Tensor:
    """Pearson correlation between the two's error indicators.

    (n_11 n_00 - n_10 n_01) / sqrt((n_11 + n_10)(n_01 + n_00)(n_11 + n_01)(n_10 + n_00)); 0 if one of the two is always
    correct or always wrong.
    """
    n_11, n_10, n_01, n_00 = _counts(logits_PNK, labels_N)
    spread = ((n_11 + n_10) * (n_01 + n_00)).sqrt() * ((n_11 + n_01) * (n_10 + n_00)).sqrt()
    return _ratio(n_11 * n_00 - n_10 * n_01, spread)


@DIVERSITY.add("kl")
def kl(logits_PNK: Tensor, labels_N: Tensor) -> Tensor:
    """Kullback-Leibler divergence between the two's probabilities, in nats; not symmetric.

    Entry (i, j): mean_n sum_k p_ink (log p_ink - log p_jnk).
    """
    log_PNK = logits_PNK.double().log_softmax(2)
    rows = [(log_NK.exp() * (log_NK - log_PNK)).sum(2).mean(1) for log_NK in log_PNK]
    return torch.stack(rows).clamp(min=0)  # rounding may leave -1e-17 between equal predictors


def _counts(logits_PNK: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """n_11, n_10, n_01, n_00 as float64 matrices (P, P)."""
    right_PN = (logits_PNK.argmax(2) == labels_N).double()
    wrong_PN = 1 - right_PN
    return right_PN @ right_PN.T, right_PN @ wrong_PN.T, wrong_PN @ right_PN.T, wrong_PN @ wrong_PN.T


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, and 0 where the denominator is 0."""
    return torch.where(denominator == 0, 0.0, numerator / denominator.where(denominator != 0, 1.0))
