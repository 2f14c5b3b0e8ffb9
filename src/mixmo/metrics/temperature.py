"""Temperature scaling (Guo et al., 2017) with the temperature of the other half, after averaging the members."""

from typing import NamedTuple

import torch
from torch import Tensor

from mixmo.metrics.scores import Metric

T_MIN, T_MAX = 0.01, 100.0
Halves = tuple[Tensor, Tensor]  # two index tensors that together name each sample once


class Calibrated(NamedTuple):
    """Logits of which each half was divided by the temperature fitted on the other half."""

    logits: Tensor  # float64 (N, K), in the order of the samples
    temperatures: tuple[float, float]  # temperatures[i] was fitted on halves[i], and divides the logits of the other
    halves: Halves

    def score(self, metric: Metric, labels_N: Tensor) -> Tensor:
        """Average a metric over the two halves, with equal weights: NLL_c is `score(nll, labels_N)`."""
        first, second = (metric(self.logits[half], labels_N[half]) for half in self.halves)
        return (first + second) / 2


def fit_temperature(logits_NK: Tensor, labels_N: Tensor) -> float:
    """Fit the temperature T in [0.01, 100] that minimises the NLL of softmax(logits / T).

    With beta = 1/T, mean_n [logsumexp_k beta z_nk - beta z_{n, y_n}] is convex in beta; its slope is
    mean_n [E_p z_n - z_{n, y_n}] and its curvature mean_n Var_p z_n, p = softmax(beta z_n). The slope's root is found
    by Newton's method inside a bracket, which is halved (in log beta) whenever a step leaves it or gains too little.
    For logits no better than chance, T = 100. Where every prediction is correct, the NLL decreases without bound as T
    does, and the fit would not generalise: T = 1, as for constant logits and for logits so small that T < 0.01.

    >>> logits = torch.tensor([[0.0, 2.0], [0.0, 2.0], [0.0, 2.0], [0.0, 2.0]])  # correct three times out of four
    >>> round(fit_temperature(logits, torch.tensor([1, 1, 1, 0])), 6)  # softmax(2 / T) = 3/4: T = 2 / log 3
    1.820478

    Args:
        logits_NK: Logits of held-out samples, of the ensemble: the mean of its members'.
        labels_N: Their class indices.

    Returns:
        The temperature.
    """
    z_NK = logits_NK.double() - logits_NK.double().amax(1, keepdim=True)
    own_N = z_NK.gather(1, labels_N[:, None])[:, 0]

    def slope_and_curvature(beta: float) -> tuple[float, float]:
        p_NK = (beta * z_NK).softmax(1)
        mean_N1 = (p_NK * z_NK).sum(1, keepdim=True)
        slope = (mean_N1[:, 0] - own_N).mean()
        return slope.item(), (p_NK * (z_NK - mean_N1).square()).sum(1).mean().item()

    low, high = 1 / T_MAX, 1 / T_MIN
    if slope_and_curvature(high)[0] <= 0:  # first: for separable or constant logits the slope is 0 throughout
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
    """Shuffle 0 .. samples - 1 and cut it in two; of an odd number, the second half has one more."""
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    return order[: samples // 2], order[samples // 2 :]


def calibrate_halves(logits_NK: Tensor, labels_N: Tensor, halves: Halves) -> Calibrated:
    """Divide the logits of each half by the temperature fitted on the other (paper, section 4)."""
    first, second = halves
    temperatures = (
        fit_temperature(logits_NK[first], labels_N[first]),
        fit_temperature(logits_NK[second], labels_N[second]),
    )
    scaled_NK = logits_NK.double().clone()
    scaled_NK[second] /= temperatures[0]
    scaled_NK[first] /= temperatures[1]
    return Calibrated(scaled_NK, temperatures, halves)
