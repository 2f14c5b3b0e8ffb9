"""Out-of-distribution (OOD) detection: detectors and AUROC, AUPR, FPR95.

A detector maps members' logits (M, N, K) to float64 scores (N,): the HIGHER, the more out of distribution. Then
`auroc`, `aupr` and `fpr95` compare the scores of in-distribution and OOD samples; ties are counted exactly.
q_n is the softmax of the mean logits (the ensemble), p_mn that of member m, and H(.) the entropy in nats.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mixmo.utils.registry import Registry

Detector = Callable[[Tensor], Tensor]  # logits (M, N, K) -> scores (N,) float64

DETECTORS: Registry[Detector] = Registry("detector")


@DETECTORS.add("max_probability")
def max_probability(logits_MNK: Tensor) -> Tensor:
    """Maximum softmax probability of the ensemble, negated: -max_k q_nk."""
    return -logits_MNK.double().mean(0).softmax(1).amax(1)


@DETECTORS.add("entropy")
def entropy(logits_MNK: Tensor) -> Tensor:
    """Entropy of the ensemble: H(q_n)."""
    return _entropy(logits_MNK.double().mean(0))


@DETECTORS.add("energy")
def energy(logits_MNK: Tensor) -> Tensor:
    """Energy of the ensemble's logits z: -logsumexp_k z_nk (Liu et al., 2020)."""
    return -logits_MNK.double().mean(0).logsumexp(1)


@DETECTORS.add("mutual_information")
def mutual_information(logits_MNK: Tensor) -> Tensor:
    """Mutual information between class and member: H(mean_m p_mn) - mean_m H(p_mn).

    The members' probabilities are averaged here, not their logits: otherwise it could be negative. Zero for one member.
    """
    logits_MNK = logits_MNK.double()
    if len(logits_MNK) == 1:  # exactly: rounding would rank the samples
        return torch.zeros_like(logits_MNK[0, :, 0])
    log_mean_NK = logits_MNK.log_softmax(2).logsumexp(0)  # but for a constant, log M
    return (_entropy(log_mean_NK) - _entropy(logits_MNK).mean(0)).clamp(min=0)


@DETECTORS.add("disagreement")
def disagreement(logits_MNK: Tensor) -> Tensor:
    """Share of pairs of members that predict different classes; zero for one member."""
    members, class_MN = len(logits_MNK), logits_MNK.argmax(2)
    different_N = (class_MN[:, None] != class_MN).sum((0, 1)).double()
    return different_N / max(1, members * (members - 1))


def _entropy(logits: Tensor) -> Tensor:
    """H(softmax(logits)) over the last dimension."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def auroc(inside_scores: Tensor, outside_scores: Tensor) -> Tensor:
    """Area under the ROC curve: P(outside score > inside score) + P(equal) / 2.

    >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])).item()
    0.875

    Args:
        inside_scores: Detector scores of in-distribution samples, (I,).
        outside_scores: Detector scores of OOD samples, (O,).

    Returns:
        The area, 0-dim float64.
    """
    inside_I, outside_O = inside_scores.double().sort()[0], outside_scores.double()
    below = torch.searchsorted(inside_I, outside_O).sum()
    not_above = torch.searchsorted(inside_I, outside_O, right=True).sum()
    return (below + not_above).double() / (2 * len(inside_I) * len(outside_O))


def aupr(inside_scores: Tensor, outside_scores: Tensor) -> Tensor:
    """Area under the precision-recall curve (average precision), the OOD samples being the positives.

    sum_t (recall_t - recall_{t-1}) precision_t over the distinct scores t from the highest down, without interpolation:
    the mean, over the OOD samples, of the precision at their own scores. With the in-distribution samples as positives
    ("AUPR-In"): `aupr(-outside_scores, -inside_scores)`.
    """
    inside_I, outside_O = (scores.double().sort()[0] for scores in (inside_scores, outside_scores))
    false_O = len(inside_I) - torch.searchsorted(inside_I, outside_O)  # in-distribution, at or above each OOD score
    true_O = len(outside_O) - torch.searchsorted(outside_O, outside_O)
    return (true_O.double() / (true_O + false_O)).mean()


def fpr95(inside_scores: Tensor, outside_scores: Tensor) -> Tensor:
    """Share of OOD samples accepted when at least 95 % of the in-distribution samples are (FPR at 95 % TPR).

    A sample is accepted if its score is at most t, the lowest in-distribution score that accepts 95 % of them. This is
    ODIN's definition, in which the threshold needs no OOD data. With the roles exchanged, as some have it:
    `fpr95(-outside_scores, -inside_scores)`.
    """
    needed = -(-19 * len(inside_scores) // 20)  # the ceiling of 95 %, in integers
    return (outside_scores.double() <= inside_scores.double().sort()[0][needed - 1]).double().mean()
