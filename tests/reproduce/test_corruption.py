"""Corrupted digits, where they stand in for CIFAR-100-C."""

import json
from pathlib import Path

import pytest
import torch

from mixmo.data.corruptions import CORRUPTIONS
from mixmo.data.types import Dataset, Split
from mixmo.reproduce import corruption
from mixmo.runs.directory import Run
from mixmo.runs.network import load_network
from mixmo.utils.progress import Work, shown

CPU = torch.device("cpu")


def test_each_corruption_of_each_severity_in_turn(digits: Dataset) -> None:
    """The same on another day, and for contrast, of which nothing is drawn, by its formula."""
    made = corruption.corrupted_digits()
    assert made.images.shape == (19 * 5 * 360, 8, 8, 1)
    assert torch.equal(made.labels, digits.test.labels.repeat(95))
    grey = digits.test.resident.double()
    mean = grey.mean((1, 2), keepdim=True)
    first = 5 * sorted(CORRUPTIONS).index("contrast")
    for severity, c in enumerate((0.75, 0.5, 0.4, 0.3, 0.15)):
        found = made.resident[360 * (first + severity) :][:360]
        assert (found - (mean + c * (grey - mean))).abs().max() < 1.01  # a fraction is cut off
    corruption.corrupted_digits.cache_clear()
    assert torch.equal(corruption.corrupted_digits().resident, made.resident)


@pytest.mark.parametrize("which", ["best", "last"])
def test_networks_are_scored_together(
    which: str, runs: list[Run], works: list[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All their heads are averaged, of two members and of one."""
    images, labels = (tensor[::97] for tensor in corruption.corrupted_digits())
    monkeypatch.setattr(corruption, "corrupted_digits", lambda: Split(images, labels))
    with shown():
        found = corruption.corrupted_scores(runs, which, Path("nowhere"), CPU)
    about = runs[0].read_dataset()
    x = (images.permute(0, 3, 1, 2) / 255 - about["mean"][0]) / about["std"][0]
    with torch.no_grad():
        heads = torch.cat([load_network(run, which).eval().each(x) for run in runs]).double()
    mean = heads.mean(0)
    assert len(heads) == 3
    assert found["images"] == "digits, corrupted here"
    assert found["pooled"]["top1"] == pytest.approx((mean.argmax(1) == labels).double().mean().item())
    assert found["pooled"]["nll"] == pytest.approx(torch.nn.functional.cross_entropy(mean, labels).item(), rel=1e-5)
    assert "/" not in json.dumps(found)  # no path
    assert [(work.doing, work.done, work.total) for work in works] == [
        ("scoring corrupted digits", 2 * len(labels), 2 * len(labels))
    ]
