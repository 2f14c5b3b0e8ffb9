"""Gamma variables near the smallest float32 number."""

import pytest
import torch
from torch import Tensor

from mixmo.utils.rng import draw_gamma

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def ratio(gamma: Tensor) -> Tensor:
    return gamma / gamma.sum(0)


@pytest.mark.parametrize("alpha", [0.1, 1e-4])
@pytest.mark.parametrize(
    ("device", "compiled"),
    [("cpu", False), pytest.param("cuda", False, marks=gpu), pytest.param("cuda", True, marks=gpu)],
)
def test_ratios_of_tiny_gamma_variables_are_finite(alpha: float, device: str, compiled: bool) -> None:
    generator = torch.Generator(device).manual_seed(0)
    gamma = draw_gamma(alpha, 2, 1_000_000, device=torch.device(device), generator=generator)
    assert gamma.min() == torch.finfo(torch.float32).tiny  # many would have been 0
    kappa = (torch.compile(ratio) if compiled else ratio)(gamma)
    assert kappa.isfinite().all()
    torch.testing.assert_close(kappa.sum(0), torch.ones_like(kappa[0]))
    assert kappa[0].mean().item() == pytest.approx(0.5, abs=0.005)
