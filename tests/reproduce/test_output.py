"""A table on the disk: which files, from which runs, drawn as what."""

import csv
import sys
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mixmo import data
from mixmo.evaluation.analysis import encoder_norms
from mixmo.recipes.schema import Recipe
from mixmo.reproduce import output, paper
from mixmo.reproduce.plan import expand
from mixmo.reproduce.report import Filled, Report, printed
from mixmo.reproduce.text import to_csv
from mixmo.runs.directory import Run
from mixmo.runs.network import load_network

pytest.importorskip("matplotlib")


def report(name: str) -> Report:
    """A table without any number of ours."""
    table = paper.load(name)
    places = [(i, j) for i in range(len(table.rows)) for j in range(len(table.columns))]
    cells = {place: Filled(None, None, 0, printed(table, *place)) for place in places}
    return Report(expand(table, "smoke", seeds=2), cells, {}, [])


def store(out: Path, found: dict[Recipe, Run]) -> Any:
    """One that has some runs, and notes which files were asked for."""
    asked = set[str]()

    def find(recipe: Recipe, needed: Collection[str]) -> Run | None:
        asked.update(needed)
        return found.get(recipe)

    return SimpleNamespace(out=out, find=find, asked=asked)


def rows(made: Report, seed: int) -> list[Recipe]:
    return [made.plan.cells[i, 0].groups[seed][0] for i in range(len(made.plan.table.rows))]


def test_the_epochs_of_the_first_seed_by_row(tmp_path: Path, runs: list[Run]) -> None:
    """Of the rows that are there; a run that cannot be read does not hide the others."""
    made = report("dynamics")
    broken = Run.create(tmp_path / "broken", runs[0].recipe)
    (broken.path / "metrics.jsonl").write_text('{"epoch": 1, "tr')
    first = rows(made, 0)
    there = store(tmp_path, {first[1]: broken, first[3]: runs[1], first[4]: runs[0], rows(made, 1)[5]: runs[0]})
    assert output.write(made, "numbers", there, None) == tmp_path / "tables" / "smoke" / "dynamics.md"
    folder = tmp_path / "tables" / "smoke"
    assert sorted(path.name for path in folder.iterdir()) == [
        *("dynamics-epochs.csv", "dynamics.csv", "dynamics.md", "dynamics.png")
    ]
    assert (folder / "dynamics.md").read_text() == "numbers"
    assert (folder / "dynamics.csv").read_text() == to_csv(made)
    lines = list(csv.DictReader((folder / "dynamics-epochs.csv").read_text().splitlines()))
    labels = [made.plan.table.rows[i].label for i in (3, 4)]
    assert [(line["run"], line["epoch"]) for line in lines] == [(label, epoch) for label in labels for epoch in "12"]
    for place, line in enumerate(lines):
        logged = runs[1 - place // 2].read_metrics()[place % 2]
        assert float(line["test.ensemble.nllc"]) == pytest.approx(logged["test"]["ensemble"]["nllc"])
    assert there.asked == {"metrics.jsonl"}
    drawn = output.picture(made, output.shown_runs(made, there), None)
    assert drawn is not None
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == labels
    assert "scale smoke" in drawn.get_suptitle()
    assert "hollow" not in drawn.get_suptitle()  # which is of numbers


@pytest.mark.parametrize("name", ["dynamics", "encoder-norms"])
def test_without_runs_there_is_no_picture_of_them(name: str, tmp_path: Path) -> None:
    output.write(report(name), "numbers", store(tmp_path, {}), None)
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == [f"{name}.csv", f"{name}.md"]


def test_the_filters_of_the_first_run(tmp_path: Path, runs: list[Run]) -> None:
    made = report("encoder-norms")
    there = store(tmp_path, {rows(made, 0)[0]: runs[0]})
    shown = output.shown_runs(made, there)
    assert there.asked == {"best.safetensors", "dataset.json"}
    drawn = output.picture(made, shown, None)
    assert drawn is not None
    (axes,) = drawn.axes
    heights = sorted(bar.get_height() for bar in axes.patches)
    assert heights == pytest.approx(sorted(encoder_norms(load_network(runs[0], "best")).flatten().tolist()))
    assert "scale smoke" in drawn.get_suptitle()


def test_pictures_of_curves_masks_and_numbers(tmp_path: Path) -> None:
    """The curves of w_r, a gallery of masks, and else the numbers."""
    weights, masks, numbers = (output.picture(report(name), {}, tmp_path) for name in ("weights", "masks", "p"))
    assert weights is not None
    assert masks is not None
    assert numbers is not None
    assert [len(weights.axes[0].lines), len(weights.axes)] == [7, 1]
    assert all("nothing is trained" in drawn.get_suptitle() for drawn in (weights, masks))
    assert any(axes.images for axes in masks.axes)
    assert "hollow or dotted: the paper's" in numbers.get_suptitle()


def test_numbers_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = output.write(report("weights"), "numbers", store(tmp_path, {}), None)
    assert path.read_text() == "numbers"
    assert sorted(file.name for file in path.parent.iterdir()) == ["weights.csv", "weights.md"]
    assert capsys.readouterr().err.startswith("weights: no picture: pictures need matplotlib")


def test_digits_as_large_as_cifar(tmp_path: Path) -> None:
    """Each pixel 4 x 4 times, where there is no CIFAR-100."""
    images, digits = output.some_images(tmp_path).test.resident, data.load("digits").test.resident
    assert images.shape == (360, 32, 32, 1)
    for y, x in ((0, 0), (5, 9), (31, 30)):
        assert torch.equal(images[:, y, x], digits[:, y // 4, x // 4])
