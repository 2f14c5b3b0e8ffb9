"""What recipes are said to reach is what the runs in results/ reached."""

import runpy
from pathlib import Path

from mixmo.recipes.reached import reached

ROOT = Path(__file__).resolve().parents[2]


def test_reached_yaml_is_made_from_results() -> None:
    """If not, run `python benchmarks/reached.py`."""
    collect = runpy.run_path(str(ROOT / "benchmarks" / "reached.py"))["collect"]
    assert [entry._asdict() for entry in reached()] == collect(ROOT / "results")
