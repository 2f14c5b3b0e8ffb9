"""What tests of several files assert, and a layer that they try."""

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import mixmo
from mixmo.runs import Run


def assert_same(one: Run, two: Run) -> None:
    """Equal to the last bit: weights, logits, and every logged number but the times."""
    for name in ("last.safetensors", "best.safetensors", "logits-last.safetensors", "logits-best.safetensors"):
        left, right = (safetensors.torch.load_file(run.path / name) for run in (one, two))
        assert left.keys() == right.keys()
        for key in left:
            assert torch.equal(left[key], right[key]), f"{name}: {key}"
    logs = [run.metrics() for run in (one, two)]
    for log in logs:
        for line in log:
            line.pop("seconds")
            line.pop("evaluation_seconds")
    assert logs[0] == logs[1]


def refused(model: nn.Module, said: str, **options: object) -> None:
    """A model that cannot be wrapped, for a reason told in one line."""
    with pytest.raises(mixmo.UserError, match=said) as caught:
        mixmo.wrap(model, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


class Standardised(nn.Conv2d):
    """A convolution that is not linear in its weights."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight * (weight.var((1, 2, 3), keepdim=True) + 1e-6).rsqrt(), self.bias)
