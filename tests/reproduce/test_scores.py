"""The scores of the tables, each read from files written by hand."""

import json
import math
from pathlib import Path

import pytest

from mixmo.evaluation.analysis import activity, core_norms, encoder_norms
from mixmo.recipes import Recipe, named
from mixmo.reproduce import scores
from mixmo.runs.directory import Run
from mixmo.runs.network import load_network


@pytest.mark.parametrize(
    ("score", "which", "networks", "files"),
    [
        ("top1", "best", 1, ""),
        ("members nll", "last", 1, ""),
        ("top1", "last10", 1, "metrics.jsonl"),
        ("top1", "best", 2, "logits-best.safetensors logits-last.safetensors"),
        ("active 0.4", "best", 1, "dataset.json best.safetensors"),
        ("corrupted top1", "last", 2, "dataset.json last.safetensors logits-last.safetensors"),
    ],
)
def test_the_files_that_a_score_needs(score: str, which: str, networks: int, files: str) -> None:
    assert scores.files(score, which, networks) == {"scores.json", *files.split()}


def test_scores_of_one_epoch() -> None:
    kept = {
        "ensemble": {"top1": 0.75, "nll": 1.5},
        "members": [{"top1": 0.5, "nll": 2.0}, {"top1": 0.75, "nll": 1.0}, {"top1": 0.25, "nll": 3.0}],
        "diversity": {"ratio_error": 0.125},
    }
    found = [scores.of_scores(name, kept) for name in ("top1", "nll", "members top1", "members nll", "ratio_error")]
    assert found == [0.75, 1.5, 0.5, 2.0, 0.125]
    assert scores.of_scores("ratio_error", kept | {"diversity": None}) is None


def test_scores_of_the_last_ten_epochs(tmp_path: Path) -> None:
    lines = [
        {
            "epoch": epoch,
            "train": {"top1": 9.0},
            "test": {
                "ensemble": {"top1": epoch / 20},
                "members": [{"top1": epoch / 30, "top5": 7.0}, {"top1": epoch / 60, "top5": 7.0}],
                "diversity": {"ratio_error": 2.0 * epoch},
            },
        }
        for epoch in range(1, 16)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    middle = 10.5  # the mean of 6, ..., 15
    for name, value in (("top1", middle / 20), ("members top1", middle / 40), ("ratio_error", 2 * middle)):
        assert scores.of_epochs(name, Run(tmp_path, Recipe())) == pytest.approx(value)
    assert math.isnan(scores.of_epochs("nllc", Run(tmp_path, Recipe())))


def test_scores_of_filters(runs: list[Run]) -> None:
    found, net = scores.filter_scores(runs[0], "best"), load_network(runs[0], "best")
    for threshold in (0.2, 0.3, 0.4, 0.5):
        share = scores.of_filters(f"active {threshold}", found, None)
        assert share == activity(core_norms(net), threshold).by_layer
    norms = encoder_norms(net)
    assert scores.of_filters("norm 1", found, 0) == pytest.approx(norms[1, 0].item())
    assert scores.of_filters("norm 1", found, 3) == pytest.approx(norms[1, 3].item())
    assert scores.of_filters("norm 0", found, 15) == pytest.approx(norms[0, -1].item())
    assert scores.of_filters("norm 0", found, 16) is None


@pytest.mark.parametrize("kappa", [0.1, 0.5, 0.9])
def test_the_area_of_a_box_that_the_border_clips(kappa: float) -> None:
    """Over all its places, in each direction."""
    half = int(32 * math.sqrt(kappa)) // 2
    sides = [min(32, place + half) - max(0, place - half) for place in range(32)]
    found = scores.of_recipe(f"area {kappa}", named("cifar100/cut-mixmo"), 1)
    assert found == pytest.approx((sum(sides) / 32 / 32) ** 2, abs=0.01)
    scores.area.cache_clear()
    assert scores.of_recipe(f"area {kappa}", named("cifar100/cut-mixmo"), 1) == found  # another day


@pytest.mark.parametrize(
    "changes",
    [
        {"mask": "concat", "members": 3},
        {"encoders": 1},
        {"heads": 1, "association": "interpolated"},
        {"members": 1, "mask": "linear"},
    ],
)
def test_an_ensemble_has_all_the_parameters_of_its_networks(changes: dict[str, object]) -> None:
    recipe = named("cifar100/cut-mixmo").replace(width=1, depth=10, **changes)
    count = sum(weight.numel() for weight in recipe.network(100, (3, 32, 32)).parameters())
    assert [scores.of_recipe("parameters", recipe, networks) for networks in (1, 3)] == [count, 3 * count]
