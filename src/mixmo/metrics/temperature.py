"""Temperature scaling (Guo et al., 2017) with the temperature of the other half, after averaging the members."""

from typing import NamedTuple

import torch
from torch import Tensor

from mixmo.metrics.checks import check_answers, check_labels
from mixmo.metrics.scores import Metric
from mixmo.utils.errors import UserError

T_MIN, T_MAX = 0.01, 100.0
Halves = tuple[Tensor, Tensor]  # two index tensors that together name each sample once


class Calibrated(NamedTuple):
    """Logits of which each half was divided by the temperature fitted on the other half."""

    logits: Tensor  # float64 (N, K), in the order of the samples
    temperatures: tuple[float, float]  # temperatures[i] was fitted on halves[i], and divides the logits of the other
    halves: Halves

    def score(self, metric: Metric, labels_N: Tensor) -> Tensor:
        """The mean of `metric` over the two halves, each counting the same: NLL_c is `score(nll, labels_N)`."""
        check_labels(labels_N, self.logits)
        first, second = (metric(self.logits[half], labels_N[half]) for half in self.halves)
        return (first + second) / 2


def fit_temperature(logits_NK: Tensor, labels_N: Tensor) -> float:
    """The temperature T in [0.01, 100] that minimises the NLL of softmax(logits / T).

    With beta = 1/T, mean_n [logsumexp_k beta z_nk - beta z_{n, y_n}] is convex in beta; its slope is
    mean_n [E_p z_n - z_{n, y_n}] and its curvature mean_n Var_p z_n, p = softmax(beta z_n). The slope's root is found
    by Newton's method inside a bracket, which is halved (in log beta) whenever a step leaves it or gains too little.
    Where the logits know no more than chance, 100 is returned. Where every answer is right, the NLL falls without end
    as T does, and a fit on a few samples would ruin all others: T is then not known, and 1; so it is for logits that
    are constant for every sample, or so small that T would lie below 0.01.

    >>> logits = torch.tensor([[0.0, 2.0], [0.0, 2.0], [0.0, 2.0], [0.0, 2.0]])  # right three times out of four
    >>> round(fit_temperature(logits, torch.tensor([1, 1, 1, 0])), 6)  # softmax(2 / T) = 3/4: T = 2 / log 3
    1.820478
    """
    logits_NK, labels_N = check_answers(logits_NK, labels_N, "NK")
    z_NK = logits_NK - logits_NK.amax(1, keepdim=True)
    own_N = z_NK.gather(1, labels_N[:, None])[:, 0]

    def slope_and_curvature(beta: float) -> tuple[float, float]:
        p_NK = (beta * z_NK).softmax(1)
        mean_N1 = (p_NK * z_NK).sum(1, keepdim=True)
        slope = (mean_N1[:, 0] - own_N).mean()
        return slope.item(), (p_NK * (z_NK - mean_N1).square()).sum(1).mean().item()

    low, high = 1 / T_MAX, 1 / T_MIN
    if slope_and_curvature(high)[0] <= 0:  # asked first: right by far, or constant, the slope is 0 throughout
        return 1.0
    if slope_and_curvature(low)[0] >= 0:
        return T_MAX
    beta, before = 1.0, float("inf")
    while True:
        slope, curvature = slope_and_curvature(beta)
        if slope < 0:
            low = beta
        else:
            high = beta
        newton = beta - slope / curvature if curvature > 0 else float("inf")
        if abs(newton - beta) <= 1e-13 * beta or high - low <= 1e-13 * high:
            return 1 / beta
        gains = low <= newton <= high and abs(slope) <= before / 2
        beta, before = newton if gains else (low * high) ** 0.5, abs(slope)


def random_halves(samples: int, seed: int = 0) -> Halves:
    """0 .. samples - 1 shuffled and cut in two; if the number is odd, the second half has one more."""
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    return order[: samples // 2], order[samples // 2 :]


def calibrate_halves(logits_NK: Tensor, labels_N: Tensor, seed: int = 0, halves: Halves | None = None) -> Calibrated:
    """Divide the logits of each half by the temperature fitted on the other (paper, section 4).

    The halves are drawn from `seed`, whatever the device, unless `halves` gives them.
    """
    logits_NK, labels_N = check_answers(logits_NK, labels_N, "NK")
    if len(labels_N) < 2:
        raise UserError("logits_NK holds one sample; pass at least two, one to fit a temperature and one to score")
    first, second = halves or random_halves(len(labels_N), seed)
    named = torch.cat([first, second])
    complete = named.dtype == torch.int64 and named.sort()[0].tolist() == list(range(len(labels_N)))
    if not complete or len(first) == 0 or len(second) == 0:
        raise UserError(
            f"halves should name each of the {len(labels_N)} samples exactly once, with none empty; "
            "pass two index tensors, such as those of random_halves"
        )
    first, second = first.to(labels_N.device), second.to(labels_N.device)
    temperatures = (
        fit_temperature(logits_NK[first], labels_N[first]),
        fit_temperature(logits_NK[second], labels_N[second]),
    )
    scaled_NK = logits_NK.clone()
    scaled_NK[second] /= temperatures[0]
    scaled_NK[first] /= temperatures[1]
    return Calibrated(scaled_NK, temperatures, (first, second))
