"""Available memory."""

from pathlib import Path

import pytest
import torch

from mixmo.utils import memory


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
