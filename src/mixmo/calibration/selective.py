"""Selective prediction: a threshold on the confidence above which the risk (error rate) is bounded."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Selective:
    """A fitted threshold: predict where the confidence max_k p_nk is above it, abstain elsewhere."""

    risk: float  # maximum selective risk: error rate among the samples that are predicted
    delta: float  # probability, over held-out sets, that the risk is exceeded all the same
    threshold: float  # 0: never abstain; 1: always, where the held-out samples guarantee nothing better
    coverage: float  # share of the held-out samples above the threshold
    bound: float  # of the risk, with probability 1 - delta; 1 at zero coverage

    def abstain(self, logits_NK: Tensor) -> Tensor:
        """Return which samples to abstain from, bool (N,)."""
        return logits_NK.double().softmax(1).amax(1) <= self.threshold


def fit_selective(logits_NK: Tensor, labels_N: Tensor, risk: float = 0.05, delta: float = 0.05) -> Selective:
    """Fit the threshold of highest coverage whose risk stays below `risk` with probability 1 - delta, unchecked.

    Selection with guaranteed risk (Geifman and El-Yaniv, 2017): k = ceil(log2 n) nested sets of the most confident
    held-out samples are tried by bisection; each is accepted if the exact binomial upper limit of its error, at
    confidence 1 - delta / k, is below `risk`. An error rate on the held-out samples that is merely below `risk`
    would be exceeded about every other time on new ones.
    """
    confidence_N, order_N = logits_NK.softmax(1).amax(1).sort(descending=True)
    errors_N = (logits_NK.argmax(1) != labels_N)[order_N].cumsum(0)
    samples = len(labels_N)
    steps = math.ceil(math.log2(samples))
    found = Selective(risk, delta, 1.0, 0.0, 1.0)
    low, high = 0, samples  # sizes that are known to be fine, and that may be
    for _ in range(steps):
        middle = math.ceil((low + high) / 2)
        # Equally confident samples stay together.
        kept = int((confidence_N >= confidence_N[middle - 1]).sum())
        bound = binomial_limit(int(errors_N[kept - 1]), kept, delta / steps)
        if bound <= risk:
            threshold = 0.0 if kept == samples else confidence_N[kept].item()
            found = Selective(risk, delta, threshold, kept / samples, bound)
            low = middle
        else:
            high = middle - 1
        if low >= high:
            break
    return found


def fewest_for_risk(risk: float, delta: float) -> int:
    """Return the fewest images from which `fit_selective` can guarantee a risk: the surer half of them has no error.

    >>> fewest_for_risk(0.05, 0.05)
    197
    """
    samples = 2
    while math.ceil(samples / 2) * math.log1p(-risk) > math.log(delta / math.ceil(math.log2(samples))):
        samples += 1
    return samples


def binomial_limit(errors: int, samples: int, delta: float) -> float:
    """The largest error rate b under which so few errors still have probability delta: P(Bin(samples, b) <= errors).

    The upper limit of Clopper and Pearson.

    >>> round(binomial_limit(0, 100, 0.05), 6)  # 1 - 0.05 ** (1 / 100)
    0.029513
    """
    if errors >= samples:
        return 1.0
    i = torch.arange(errors + 1, dtype=torch.float64)
    n = torch.tensor(float(samples), dtype=torch.float64)
    ways = torch.lgamma(n + 1) - torch.lgamma(i + 1) - torch.lgamma(n - i + 1)
    low, high = errors / samples, 1.0
    for _ in range(60):
        b = (low + high) / 2
        tail = (ways + i * math.log(b) + (n - i) * math.log1p(-b)).logsumexp(0).exp().item()
        low, high = (b, high) if tail > delta else (low, b)
    return high
