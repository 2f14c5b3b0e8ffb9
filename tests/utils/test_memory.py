"""Networks and images larger than the memory are rejected before they are made."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import mixmo
from mixmo.utils import memory

HUGE = (3, 10**6, 10**6)


def own() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


@pytest.mark.parametrize("make", [lambda: mixmo.create("wrn10_1", 10), lambda: mixmo.wrap(own())])
@pytest.mark.parametrize("classes", [10**12, 10**30])
def test_too_many_classes_for_the_memory_are_rejected(make: Callable[[], mixmo.Ensemble], classes: int) -> None:
    with pytest.raises(
        mixmo.UserError, match=rf"the heads of {classes} classes need [\d,]+ GB, and there are .*; take"
    ):
        mixmo.convert(make(), classes=classes)


def test_too_many_members_for_the_memory_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fits, all together do not: 10,000 x 8 numbers of 4 bytes, 500 times."""
    model = own()
    model[4] = nn.Linear(8, 10_000)
    net = mixmo.wrap(model)
    monkeypatch.setattr("mixmo.utils.memory._physical", lambda: 150_000_000)
    said = "the layers of 500 members need 0.18 GB, and there are 0.15 GB of memory; take fewer"
    for call in (lambda: mixmo.wrap(model, members=500), lambda: mixmo.convert(net, members=500)):
        with pytest.raises(mixmo.UserError, match=said):
            call()


def test_too_large_images_for_the_memory_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(mixmo.UserError, match=r"two images of \(3, 1000000, 1000000\) need 24,000 GB.*a smaller size"):
        mixmo.wrap(own(), size=HUGE)
    with pytest.raises(mixmo.UserError, match=r"three images of \(3, 1000000, 1000000\) need 36,000 GB.*smaller size"):
        mixmo.export(mixmo.create("wrn10_1", 10), tmp_path / "net.pt2", size=HUGE)


def test_weights_are_the_bytes_of_the_parameters() -> None:
    assert memory.weights(nn.Linear(3, 2)) == 4 * (3 * 2 + 2)
    assert memory.weights(nn.Linear(3, 2).to(torch.bfloat16)) == 2 * (3 * 2 + 2)


@pytest.mark.parametrize(("limit", "total"), [(None, 10**18), ("max", 10**18), ("1000", 1000), (str(10**19), 10**18)])
def test_the_limit_of_a_container_is_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, total: int
) -> None:
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    monkeypatch.setattr(memory, "_physical", lambda: 10**18)
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("300\n")
    assert memory.total(torch.device("cpu")) == total
    if limit == "1000":
        assert memory.free() == 700
    elif Path("/proc/meminfo").exists():
        found = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        assert memory.free() == pytest.approx(1024 * int(found["MemAvailable"].split()[0]), rel=0.5)


def test_what_just_fits_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "total", lambda _: 10**9)
    memory.check(10**9, torch.device("cpu"), "images", "take fewer")
    with pytest.raises(mixmo.UserError, match="images need 1 GB, and there are 1 GB of memory; take fewer"):
        memory.check(10**9 + 1, torch.device("cpu"), "images", "take fewer")
