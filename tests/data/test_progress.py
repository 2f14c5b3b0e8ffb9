import pytest

from mixmo.data import progress
from mixmo.data.progress import track


def test_items_come_through():
    assert list(track(["a", "b"], "doing")) == ["a", "b"]
    assert list(track([], "doing")) == []


def test_lines_with_the_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Ten seconds an item: after 40 s comes a line, and standard output stays clean."""
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    list(track(range(7), "scoring"))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["scoring: 3 of 7, 53 s left"]  # 40 s for three
