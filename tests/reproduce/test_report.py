"""What fills a cell, from runs written by hand."""

import json
from pathlib import Path

import pytest
import torch

from mixmo.recipes import Recipe, named
from mixmo.reproduce import paper
from mixmo.reproduce.plan import Cell, Plan, expand
from mixmo.reproduce.report import Filled, Where, absent, cell_values, fill, value
from mixmo.reproduce.store import Store, run_name
from mixmo.reproduce.text import markdown
from mixmo.runs.contents import SCORES
from mixmo.runs.directory import Run

WHERE = Where(Path("nowhere"), torch.device("cpu"))
RECIPES = [named("digits/cut-mixmo").replace(seed=seed) for seed in range(4)]


def finish(out: Path, recipe: Recipe, top1: float, nllc: float = 1.0, device: str | None = None) -> None:
    """A run whose best epoch has these scores; those of its epochs are all 0.25."""
    run = Run.create(out / "runs" / run_name(recipe), recipe)
    epochs = {
        which: {"ensemble": dict.fromkeys(SCORES, 0.5) | {"top1": t, "nllc": n}, "members": []}
        for which, t, n in (("best", top1, nllc), ("last", 0.0, 9.0))
    }
    about = {"parameters": 1, "multiply_adds": 1, "best_epoch": 1, "best_by": "test", "seconds": 1.0}
    run.write("scores.json", json.dumps(epochs | about))
    run.write("metrics.jsonl", json.dumps({"epoch": 1, "test": {"ensemble": {"top1": 0.25}}}) + "\n")
    if device is not None:
        run.write("environment.json", json.dumps({"device_name": device}))


def cell(score: str, which: str = "best", networks: int = 1) -> Cell:
    groups = tuple(tuple(RECIPES[i : i + networks]) for i in range(len(RECIPES) + 1 - networks))
    return Cell(groups, score, which, None, planned=True)


def test_the_best_run_is_that_of_highest_top1(tmp_path: Path) -> None:
    for recipe, top1, nllc in zip(RECIPES, (0.5, 0.75, 0.25), (1.0, 3.0, 2.0), strict=False):  # the fourth is not there
        finish(tmp_path, recipe, top1, nllc)
    store = Store(tmp_path)
    assert cell_values(cell("nllc"), False, store, WHERE, {}) == [1.0, 3.0, 2.0]
    assert cell_values(cell("nllc"), True, store, WHERE, {}) == [3.0]


def test_an_ensemble_has_no_last_ten_epochs(tmp_path: Path) -> None:
    """The log of one of its runs is not its own."""
    for recipe in RECIPES:
        finish(tmp_path, recipe, 0.5)
    store, one, two = Store(tmp_path), cell("top1", "last10"), cell("top1", "last10", 2)
    assert value(one, one.groups[0], store, WHERE) == 0.25
    assert value(two, two.groups[0], store, WHERE) is None


def test_mean_spread_difference_and_devices(tmp_path: Path) -> None:
    """In per cent, over the seeds that are there."""
    table = paper.load("main-table")
    row = [r.label for r in table.rows].index("Cut-MixMo b=4")
    whole = expand(table, "smoke", seeds=3)
    recipes = [group[0] for group in whole.cells[row, 0].groups]
    for recipe, top1, device in zip(recipes, (0.5, 0.6, 0.8), ("A", "B", "B"), strict=True):
        finish(tmp_path, recipe, top1, device=device)
    plan = Plan(table, whole.scale, {}, 3, {(row, 0): whole.cells[row, 0]}, 0)
    report = fill(plan, Store(tmp_path), WHERE)
    figure = table.figures[row, 0]
    filled = report.cells[row, 0]
    assert filled == (pytest.approx(190 / 3), pytest.approx((700 / 3) ** 0.5), 3, figure)
    assert filled.difference == pytest.approx(190 / 3 - figure.value)
    assert report.devices == {"A": 1, "B": 2}
    assert report.cells[row, 1] == (None, None, 0, table.figures[row, 1])
    two = whole.cells[row, 0]._replace(groups=whole.cells[row, 0].groups[:2])
    unscored = whole.cells[row, 2]._replace(which="last10")  # by the epochs of these runs
    found = fill(plan._replace(cells={(row, 0): two, (row, 2): unscored}), Store(tmp_path), WHERE).cells
    assert found[row, 0][:3] == (pytest.approx(55), pytest.approx(50**0.5), 2)
    assert found[row, 2][:3] == (None, None, 0)


def test_a_difference_needs_both_numbers() -> None:
    figure = paper.Figure(0.5, None)
    assert Filled(0.75, None, 1, figure).difference == 0.25
    assert Filled(None, None, 0, figure).difference is None
    assert Filled(0.75, None, 1, None).difference is None


@pytest.mark.parametrize(("scale", "settings"), [("paper", {}), ("paper", {"width": 4}), ("smoke", {})])
def test_notes_on_the_papers_networks_are_not_shown_for_others(
    tmp_path: Path, scale: str, settings: dict[str, int]
) -> None:
    plan, store = expand(paper.load("mixing"), scale, settings), Store(tmp_path)
    text = markdown(fill(plan, store, WHERE), absent(plan, store), "command")
    assert ("In the paper: CIFAR-100, WRN-28-10" in text) == (scale != "paper" or bool(settings))
    assert "CIFAR-100, WRN-28-10" in text


@pytest.mark.parametrize(
    ("name", "heading", "first"),
    [
        ("main-table", "| | time (paper) | CIFAR-100 Top1 % | ", "| Vanilla | 1/1 | - (81.63) | "),
        ("mixing", "| | Top1 % | ", "| Mixup (linear) | - (82.50) | "),
    ],
)
def test_a_line_of_markdown_has_a_cell_for_every_column(tmp_path: Path, name: str, heading: str, first: str) -> None:
    plan, store = expand(paper.load(name), "smoke"), Store(tmp_path)
    text = markdown(fill(plan, store, WHERE), absent(plan, store), "command")
    lines = [line.replace("|  |", "| |") for line in text.splitlines() if line.startswith("|")]
    assert lines[0].startswith(heading)
    assert set(lines[1].split()) == {"|", "---"}
    assert lines[2].startswith(first)
    assert len(lines) == 2 + len(plan.table.rows)
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize(("scale", "beyond"), [("hour", True), ("smoke", False)])
def test_cells_that_a_scale_leaves_out_are_counted(tmp_path: Path, scale: str, beyond: bool) -> None:
    plan, store = expand(paper.load("summary"), scale), Store(tmp_path)
    text = markdown(fill(plan, store, WHERE), absent(plan, store), "command")
    assert ("80 cells are beyond this scale" in text) == beyond
    assert ("beyond" in text) == beyond
