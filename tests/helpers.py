"""What tests of several files assert, and what they try it on."""

import resource
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor, nn

import mixmo
from mixmo.runs.directory import Run


def assert_same(one: Run, two: Run) -> None:
    """Equal to the last bit: weights, logits, and every logged number but the times."""
    for name in ("last.safetensors", "best.safetensors", "logits-last.safetensors", "logits-best.safetensors"):
        left, right = (safetensors.torch.load_file(run.path / name) for run in (one, two))
        assert left.keys() == right.keys()
        for key in left:
            assert torch.equal(left[key], right[key]), f"{name}: {key}"
    logs = [run.read_metrics() for run in (one, two)]
    for log in logs:
        for line in log:
            line.pop("seconds")
            line.pop("evaluation_seconds")
    assert logs[0] == logs[1]


def assert_wrap_fails(model: nn.Module, word: str, **options: object) -> None:
    """Check that wrapping raises a UserError of one line with this word."""
    with pytest.raises(mixmo.UserError, match=word) as caught:
        mixmo.wrap(model, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


class Standardised(nn.Conv2d):
    """A convolution that is not linear in its weights."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight * (weight.var((1, 2, 3), keepdim=True) + 1e-6).rsqrt(), self.bias)


def noise(root: Path, counts: Mapping[str, int], labels: Iterable[str], shape: tuple[int, ...]) -> Path:
    """Random images ROOT/PART/LABEL/00.png and so on: of each label so many a part."""
    random = np.random.default_rng(0)
    for part, count in counts.items():
        for label in labels:
            (root / part / label).mkdir(parents=True)
            for number in range(count):
                image = Image.fromarray(random.integers(0, 256, shape, np.uint8))
                image.save(root / part / label / f"{number:02}.png")
    return root


@contextmanager
def limited(gib: float = 1.0, seconds: float = 10.0) -> Iterator[None]:
    """Fail if the block takes more memory (a MemoryError) or more CPU time (SIGPROF ends the process)."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + int(gib * 2**30), before[1]))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)


def address_space() -> int:
    """Return the bytes of virtual memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
