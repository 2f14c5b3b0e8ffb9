"""When to abstain: a threshold on the confidence above which the answers are wrong at most so often."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mixmo.metrics.checks import check_answers, check_logits
from mixmo.utils.errors import UserError


@dataclass(frozen=True)
class Selective:
    """A fitted threshold: answer where the confidence max_k p_nk is above it, abstain elsewhere."""

    risk: float  # wanted share of wrong answers, at most
    delta: float  # probability, over held-out sets, that the risk is larger all the same
    threshold: float  # 0 answers always; 1 never, where the held-out samples promise nothing better
    coverage: float  # share of the held-out samples that are answered
    bound: float  # on the risk, with probability 1 - delta; 1 where nothing is answered

    def abstain(self, logits_NK: Tensor) -> Tensor:
        """Which samples are better left unanswered, bool (N,)."""
        return check_logits(logits_NK, "NK").softmax(1).amax(1) <= self.threshold


def fit_selective(logits_NK: Tensor, labels_N: Tensor, risk: float = 0.05, delta: float = 0.05) -> Selective:
    """The threshold that answers most while the risk stays below `risk` with probability 1 - delta.

    Selection with guaranteed risk (Geifman and El-Yaniv, 2017): k = ceil(log2 n) nested sets of the most confident
    held-out samples are tried by bisection; each is accepted if the exact binomial upper limit of its error, at
    confidence 1 - delta / k, is below `risk`. A share of errors on the held-out samples that is merely below `risk`
    would be exceeded about every other time on new ones.
    """
    for name, value in (("risk", risk), ("delta", delta)):
        if not 0 < value < 1:
            raise UserError(f"{name} = {value} is no probability; take one between 0 and 1")
    logits_NK, labels_N = check_answers(logits_NK, labels_N, "NK")
    confidence_N, order_N = logits_NK.softmax(1).amax(1).sort(descending=True)
    errors_N = (logits_NK.argmax(1) != labels_N)[order_N].cumsum(0)
    samples = len(labels_N)
    steps = math.ceil(math.log2(samples))
    found = Selective(risk, delta, 1.0, 0.0, 1.0)
    low, high = 0, samples  # so many answered are known to be fine; so many may be
    for _ in range(steps):
        middle = math.ceil((low + high) / 2)
        # Equally confident samples are answered together.
        answered = int((confidence_N >= confidence_N[middle - 1]).sum())
        bound = binomial_limit(int(errors_N[answered - 1]), answered, delta / steps)
        if bound <= risk:
            threshold = 0.0 if answered == samples else confidence_N[answered].item()
            found = Selective(risk, delta, threshold, answered / samples, bound)
            low = middle
        else:
            high = middle - 1
        if low >= high:
            break
    return found


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
