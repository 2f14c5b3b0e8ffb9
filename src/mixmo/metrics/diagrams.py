"""What reliability and risk-coverage diagrams draw: pure functions of logits (N, K) and class indices (N,), in float64.

c_n = max_k p_nk is the confidence of a sample, p_nk the softmax of its logits.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mixmo.metrics.scores import BINS


class Reliability(NamedTuple):
    """Samples by confidence, in bins of equal width as `ece` has them; a bin without samples has zeros."""

    samples: Tensor  # int64 (B,)
    confidence: Tensor  # mean c_n, (B,)
    accuracy: Tensor  # share of correct predictions, (B,)


def reliability(logits_NK: Tensor, labels_N: Tensor, bins: int = BINS) -> Reliability:
    """Mean confidence and accuracy of the samples with a confidence in ((b - 1)/B, b/B].

    The expected calibration error is sum_b |B_b| / N * |confidence_b - accuracy_b|.
    """
    confidence_N, correct_N = _confidence(logits_NK, labels_N)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    bin_N = torch.bucketize(confidence_N, edges[1:-1])
    count_B = torch.bincount(bin_N, minlength=bins)
    means = [torch.bincount(bin_N, value_N, bins) / count_B.clamp(min=1) for value_N in (confidence_N, correct_N)]
    return Reliability(count_B, *means)


def risk_coverage(logits_NK: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
    """Coverage n/N and risk (error rate) of the n most confident samples, for n = 1 to N; ties in their order."""
    confidence_N, correct_N = _confidence(logits_NK, labels_N)
    wrong_N = 1 - correct_N[confidence_N.argsort(descending=True, stable=True)]
    count_N = torch.arange(1, len(wrong_N) + 1, dtype=torch.float64)
    return count_N / len(wrong_N), wrong_N.cumsum(0) / count_N


def aurc(logits_NK: Tensor, labels_N: Tensor) -> Tensor:
    """Area under the risk-coverage curve: the mean risk over all coverages; 0 if no prediction is wrong.

    (1/N) sum_n risk_n (Geifman et al., 2019). At best all wrong predictions are the least confident ones.
    """
    return risk_coverage(logits_NK, labels_N)[1].mean()


def confusion(logits_NK: Tensor, labels_N: Tensor) -> Tensor:
    """Number of samples of class i that are predicted as class j, int64 (K, K)."""
    classes = logits_NK.shape[1]
    return torch.bincount(classes * labels_N + logits_NK.argmax(1), minlength=classes**2).view(classes, classes)


def _confidence(logits_NK: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
    confidence_N = logits_NK.double().softmax(1).amax(1)
    return confidence_N, (logits_NK.argmax(1) == labels_N).double()
