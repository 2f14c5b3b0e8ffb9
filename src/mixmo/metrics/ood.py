"""Out-of-distribution detection: how strange each sample looks to the members, and how well that tells it apart.

A detector maps members' logits (M, N, K) to float64 scores (N,): the HIGHER, the more out of distribution. Then
`auroc`, `aupr` and `fpr95` compare the scores of samples from inside and outside; equal scores are counted exactly.
q_n is the softmax of the mean logits (the ensemble), p_mn that of member m, and H(.) the entropy in nats.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mixmo.metrics.checks import check_logits, check_scores
from mixmo.utils.registry import Registry

Detector = Callable[[Tensor], Tensor]  # logits (M, N, K) -> scores (N,) float64

DETECTORS: Registry[Detector] = Registry("detector")


@DETECTORS.add("max_probability")
def max_probability(logits_MNK: Tensor) -> Tensor:
    """Maximum softmax probability of the ensemble, negated: -max_k q_nk."""
    return -check_logits(logits_MNK, "MNK").mean(0).softmax(1).amax(1)


@DETECTORS.add("entropy")
def entropy(logits_MNK: Tensor) -> Tensor:
    """Entropy of the ensemble: H(q_n)."""
    return _entropy(check_logits(logits_MNK, "MNK").mean(0))


@DETECTORS.add("energy")
def energy(logits_MNK: Tensor) -> Tensor:
    """Energy of the ensemble's logits z: -logsumexp_k z_nk (Liu et al., 2020)."""
    return -check_logits(logits_MNK, "MNK").mean(0).logsumexp(1)


@DETECTORS.add("mutual_information")
def mutual_information(logits_MNK: Tensor) -> Tensor:
    """Mutual information between answer and member: H(mean_m p_mn) - mean_m H(p_mn).

    Here alone the members' probabilities are averaged: with the mean of logits it would not be an information, and
    could be negative. Zero for one member.
    """
    logits_MNK = check_logits(logits_MNK, "MNK")
    if len(logits_MNK) == 1:  # exactly: rounding would rank the samples
        return torch.zeros_like(logits_MNK[0, :, 0])
    log_mean_NK = logits_MNK.log_softmax(2).logsumexp(0)  # but for a constant, log M
    return (_entropy(log_mean_NK) - _entropy(logits_MNK).mean(0)).clamp(min=0)


@DETECTORS.add("disagreement")
def disagreement(logits_MNK: Tensor) -> Tensor:
    """Share of pairs of members that give different answers; zero for one member."""
    logits_MNK = check_logits(logits_MNK, "MNK")
    members = len(logits_MNK)
    answer_MN = logits_MNK.argmax(2)
    different_N = (answer_MN[:, None] != answer_MN).sum((0, 1)).double()
    return different_N / max(1, members * (members - 1))


def _entropy(logits: Tensor) -> Tensor:
    """H(softmax(logits)) over the last dimension."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def auroc(inside_scores: Tensor, outside_scores: Tensor) -> Tensor:
    """Area under the ROC curve: the chance that an outside score is higher than an inside one, ties counting for half.

    >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])).item()
    0.875
    """
    inside_I = check_scores(inside_scores, "inside_scores").sort()[0]
    outside_O = check_scores(outside_scores, "outside_scores")
    below = torch.searchsorted(inside_I, outside_O).sum()
    not_above = torch.searchsorted(inside_I, outside_O, right=True).sum()
    return (below + not_above).double() / (2 * len(inside_I) * len(outside_O))


def aupr(inside_scores: Tensor, outside_scores: Tensor) -> Tensor:
    """Area under the precision-recall curve (average precision), the outside samples being the positives.

    sum_t (recall_t - recall_{t-1}) precision_t over the distinct scores t from the highest down, without interpolation;
    which is the mean, over the outside samples, of the precision at their own scores.
    With the inside samples as positives ("AUPR-In"): `aupr(-outside_scores, -inside_scores)`.
    """
    inside_I = check_scores(inside_scores, "inside_scores").sort()[0]
    outside_O = check_scores(outside_scores, "outside_scores").sort()[0]
    false_O = len(inside_I) - torch.searchsorted(inside_I, outside_O)  # inside samples at or above each outside score
    true_O = len(outside_O) - torch.searchsorted(outside_O, outside_O)
    return (true_O.double() / (true_O + false_O)).mean()


def fpr95(inside_scores: Tensor, outside_scores: Tensor) -> Tensor:
    """False positive rate at 95%: share of outside samples that pass when at least 95% of the inside ones do.

    A sample passes if its score is at most t, the lowest of the inside scores that lets 95% of them pass. This is the
    usual definition (ODIN), in which the threshold needs no outside data. Some turn the roles around: that is
    `fpr95(-outside_scores, -inside_scores)`.
    """
    inside_I = check_scores(inside_scores, "inside_scores").sort()[0]
    needed = -(-19 * len(inside_I) // 20)  # the ceiling of 95%, in integers
    return (check_scores(outside_scores, "outside_scores") <= inside_I[needed - 1]).double().mean()
