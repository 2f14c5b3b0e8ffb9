"""A training builds its network once and scores the same logits once."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mixmo.engine import Runtime, records, scoring, train
from mixmo.recipes import Recipe, named

RUNTIME = Runtime(device="cpu", quiet=True)
ONE = named("digits/manifold-mixup").replace(epochs=1, width=1, batch_size=512)  # which needs shapes of features


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each was called."""
    counts: Counter[str] = Counter()

    def count(target: Any, attribute: str, counts_if: Any = lambda *_: True) -> None:
        original = getattr(target, attribute)

        def counted(*arguments: Any, **named: Any) -> Any:
            counts[attribute] += counts_if(*arguments)
            return original(*arguments, **named)

        monkeypatch.setattr(target, attribute, counted)

    count(Recipe, "network")
    count(scoring, "predict_split")
    count(Path, "read_text", lambda path: path.name == "recipe.yaml")
    monkeypatch.setattr(records, "evaluate", scoring.evaluate)
    for module in (scoring, records):
        count(module, "evaluate")
    return counts


def test_a_one_epoch_run_builds_one_network_and_scores_once(tmp_path: Path, counts: Counter[str]) -> None:
    train(ONE, tmp_path / "run", RUNTIME)
    assert counts["network"] == 1
    assert counts["predict_split"] == counts["evaluate"] == 1
    assert counts["read_text"] <= 2


def test_half_precision_adds_one_float32_prediction(tmp_path: Path, counts: Counter[str]) -> None:
    train(ONE.replace(precision="bf16"), tmp_path / "run", RUNTIME)
    assert counts["predict_split"] == counts["evaluate"] == 2


def test_two_epochs_are_scored_once_each_and_an_earlier_best_once_more(tmp_path: Path, counts: Counter[str]) -> None:
    run = train(ONE.replace(epochs=2, lr=1e-6), tmp_path / "run", RUNTIME)
    extra = run.read_scores()["best_epoch"] == 1
    assert counts["predict_split"] == counts["evaluate"] == 2 + extra


def test_one_device_does_not_import_lightning(tmp_path: Path) -> None:
    script = f"""
import sys
from mixmo.engine import Runtime, train
from mixmo.recipes import named
train(named("digits/vanilla").replace(width=1), {str(tmp_path / "run")!r}, Runtime(device="cpu", quiet=True), until=1)
sys.exit("lightning_fabric" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
