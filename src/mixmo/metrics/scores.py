"""Scores of one predictor: pure functions of logits (N, K) and class indices (N,), computed in float64.

p_nk is the softmax of the logits, y_n the label, c_n = max_k p_nk the confidence, and 1[.] one if true, zero if not.
An ensemble is scored by the MEAN OF ITS MEMBERS' LOGITS, `logits_MNK.mean(0)`: this is the authors' protocol. The mean
of probabilities is another predictor; for the members of a MixMo network it is much less confident.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mixmo.metrics.ood import auroc
from mixmo.utils.registry import Registry

Metric = Callable[[Tensor, Tensor], Tensor]  # (float64 logits (N, K), int64 labels (N,)) -> a number, 0-dim

METRICS: Registry[Metric] = Registry("metric", taken=("nllc", "ecec", "temperatures", "own"))

BINS = 15
TACE_THRESHOLD = 1e-3


@METRICS.add("top1")
def top1(logits_NK: Tensor, labels_N: Tensor) -> Tensor:
    """Share of samples whose label has the largest logit; of equal ones the first, or a constant would be right."""
    return _top(logits_NK, labels_N, 1)


@METRICS.add("top5")
def top5(logits_NK: Tensor, labels_N: Tensor) -> Tensor:
    """Share of samples whose label is among the min(5, K) largest logits; of equal ones the first win."""
    return _top(logits_NK, labels_N, 5)


def _top(logits_NK: Tensor, labels_N: Tensor, k: int) -> Tensor:
    labels_N1 = labels_N[:, None]
    own_N1 = logits_NK.gather(1, labels_N1)
    earlier_NK = torch.arange(logits_NK.shape[1], device=logits_NK.device) < labels_N1
    ahead_NK = (logits_NK > own_N1) | ((logits_NK == own_N1) & earlier_NK)
    return (ahead_NK.sum(1) < k).double().mean()


@METRICS.add("nll")
def nll(logits_NK: Tensor, labels_N: Tensor) -> Tensor:
    """Negative log-likelihood: mean_n -log p_{n, y_n}, in nats."""
    return F.cross_entropy(logits_NK.double(), labels_N)


@METRICS.add("brier")
def brier(logits_NK: Tensor, labels_N: Tensor) -> Tensor:
    """Brier score: mean_n sum_k (p_nk - 1[k = y_n])^2, from 0 to 2.

    The authors' code also divides by the number of classes K.
    """
    target_NK = F.one_hot(labels_N, logits_NK.shape[1])
    return (logits_NK.double().softmax(1) - target_NK).square().sum(1).mean()


@METRICS.add("ece")
def ece(logits_NK: Tensor, labels_N: Tensor) -> Tensor:
    """Expected calibration error: gap between confidence and accuracy in 15 bins of equal width.

    sum_b |B_b| / N * |mean_{n in B_b} c_n - mean_{n in B_b} 1[correct]|, where B_b holds the confidences in
    ((b - 1)/15, b/15]. It is biased upwards by small N: two halves have a larger mean ECE than the whole.
    """
    confidence_N = logits_NK.double().softmax(1).amax(1)
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64, device=logits_NK.device)
    bin_N = torch.bucketize(confidence_N, edges[1:-1])  # edges[b] < confidence <= edges[b + 1]
    gap_N = confidence_N - (logits_NK.argmax(1) == labels_N).double()
    return confidence_N.new_zeros(BINS).scatter_add(0, bin_N, gap_N).abs().sum() / len(labels_N)


@METRICS.add("tace")
def tace(logits_NK: Tensor, labels_N: Tensor) -> Tensor:
    """Thresholded adaptive calibration error: gap for each class in 15 bins of equal count.

    For each class k, the n_k probabilities above 0.001 are sorted (equal ones in the order of the samples) and cut into
    15 bins of n_k // 15, the last one taking the remainder too; then
    1/(N K) sum_k sum_b |sum_{n in B_kb} (p_nk - 1[y_n = k])|.
    """
    samples, classes = logits_NK.shape
    p_NK, order_NK = logits_NK.double().softmax(1).sort(dim=0, stable=True)
    kept_K = (p_NK > TACE_THRESHOLD).sum(0)
    place_NK = torch.arange(samples, device=p_NK.device)[:, None] - (samples - kept_K)  # from 0 above the threshold
    size_K = kept_K // BINS
    bin_NK = torch.where(size_K > 0, place_NK // size_K.clamp(min=1), BINS - 1).clamp(0, BINS - 1)
    gap_NK = p_NK - (labels_N[order_NK] == torch.arange(classes, device=p_NK.device)).double()
    gap_BK = p_NK.new_zeros(BINS, classes).scatter_add(0, bin_NK, gap_NK.where(place_NK >= 0, 0.0))
    return gap_BK.abs().sum() / (samples * classes)


@METRICS.add("auc")
def auc(logits_NK: Tensor, labels_N: Tensor) -> Tensor:
    """AUROC of the confidence as a detector of correct predictions.

    The probability that a correct prediction is more confident than a wrong one, ties counting for half; 0.5 if there
    are none of one kind.
    """
    confidence_N = logits_NK.double().softmax(1).amax(1)
    correct_N = logits_NK.argmax(1) == labels_N
    if correct_N.all() or not correct_N.any():
        return confidence_N.new_tensor(0.5)
    return auroc(confidence_N[~correct_N], confidence_N[correct_N])
