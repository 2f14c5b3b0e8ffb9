"""Tables of Markdown pages, filled from a folder of runs."""

import json
from pathlib import Path

import pytest

from mixmo.cli.app import main
from mixmo.data.corrupted import COMMON, EXTRA
from mixmo.recipes import Recipe, named
from mixmo.reproduce.pages import filled
from mixmo.runs.directory import Run

WIDTH4 = named("cifar100/cutmix").replace(width=4)


def scores(top1: float) -> dict[str, object]:
    one = {"top1": top1, "top5": 0.9, "nll": 1.0, "nllc": 0.5 + top1, "ece": 0.1}
    return {"ensemble": one, "members": [one], "diversity": None}


def put(results: Path, name: str, recipe: Recipe, last: float, best: float) -> None:
    run = Run.create(results / name, recipe)
    cost = {"seconds": 90.0, "multiply_adds": 100}
    run.write("scores.json", json.dumps({"last": scores(last), "best": scores(best), **cost}))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    put(tmp_path, "w4/a", WIDTH4, 0.80, 0.82)
    put(tmp_path, "w4/b", WIDTH4.replace(seed=1), 0.82, 0.84)
    put(tmp_path, "w4/c", WIDTH4.replace(batch_size=256), 0.70, 0.72)
    put(tmp_path, "w4/d", named("cifar100/cut-mixmo").replace(width=4, repetition=4), 0.75, 0.76)
    (tmp_path / "ensembles").mkdir()
    pair = {"runs": ["w4/a", "w4/b"], "last": scores(0.9), "best": scores(0.91)}
    (tmp_path / "ensembles" / "pair.json").write_text(json.dumps(pair))
    return tmp_path


def cells(results: Path, marker: str) -> list[list[str]]:
    """The lines of a table below its header."""
    text = filled(f"<!-- table: {marker} -->\n<!-- end of table -->\n", results)
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines()[3:-1]]


def test_seeds_are_one_row_with_mean_and_standard_deviation(results: Path) -> None:
    rows = cells(results, "runs w4/*")
    assert [row[:4] for row in rows] == [
        ["CutMix", "1", "64", "2"],
        ["CutMix", "1", "256", "1"],
        ["Cut-MixMo", "4", "64", "1"],
    ]
    assert [row[4] for row in rows] == ["81.00 ± 1.41 (83.00 ± 1.41)", "70.00 (72.00)", "75.00 (76.00)"]
    assert rows[0][-1] == "`w4/a`, `w4/b`"


def test_the_papers_figure_is_that_of_the_same_network(results: Path) -> None:
    rows = cells(results, "paper w4/* ensembles/pair.json")
    assert [row[5] for row in rows] == ["81.55", "81.55", "81.68", "83.93"]
    assert rows[0][6:8] == ["1.330 ± 0.014", "0.711"]
    assert cells(results, "paper w4/* width=10")[0][5] == "84.05"


def test_costs_are_relative_to_the_first_row(results: Path) -> None:
    rows = cells(results, "short w4/a w4/d ensembles/pair.json")
    assert [row[-2:] for row in rows] == [["1 x", "1 x"], ["1 x", "4 x"], ["2 x", "2 x"]]


def test_a_queue_shows_what_is_left(results: Path) -> None:
    (results / "queue.yaml").write_text("- {table: summary, rows: [w=4], group: 1-Net + CutMix, seeds: 3}\n")
    first, whole = cells(results, "queue queue.yaml")
    assert first[:5] == ["`summary`", "1-Net + CutMix, w=4", "paper", "3", "2"]
    assert 20 < float(whole[-1]) < 40


def test_corruptions_are_pooled_over_all_cells(results: Path) -> None:
    cell = {"top5": 0.8, "nll": 2.0}
    found = {f"corrupted {name}": {"1": {"top1": 0.5, **cell}, "2": {"top1": 0.3, **cell}} for name in COMMON}
    found |= {f"corrupted {name}": {"1": {"top1": 0.9, **cell}, "2": {"top1": 0.9, **cell}} for name in EXTRA}
    found |= {f"ood {name}": {"entropy": {"auroc": 0.8, "fpr95": 0.7}} for name in ("cifar10", "noise")}
    (results / "one.json").write_text(json.dumps({"images": 1000, "corrupted": 100, **found}))
    (row,) = cells(results, "beyond one.json")
    assert row[:6] == ["`one`", "100", "50.5", "80.0", "2.00", "60.0"]
    assert row[6:] == ["1000", "80.0, 70.0", "", "80.0, 70.0"]


def fine_tuned(seed: int, top1: float, **changes: object) -> dict[str, object]:
    """A run as it is recorded: with the fields that differ from the usual recipe."""
    usual, full = Recipe().to_dict(), named("finetune/cut-mixmo").replace(dataset="folder:x", seed=seed, **changes)
    recipe = {name: value for name, value in full.to_dict().items() if value != usual[name]}
    curve = {"10": {"validation": {"top1": 0.1, "nllc": 3.0}}, "20": {"validation": {"top1": 0.5, "nllc": 2.0}}}
    return {"method": "cut-mixmo", "images": 1000, "recipe": recipe, "scores": {"last": scores(top1)}, "curve": curve}


def test_fine_tuning_shows_options_images_seen_and_the_spread_of_seeds(results: Path) -> None:
    runs = [fine_tuned(0, 0.4), fine_tuned(1, 0.6), fine_tuned(0, 0.7, epochs=60, rho=0.0)]
    (results / "finetune.json").write_text(json.dumps(runs))
    assert cells(results, "finetune finetune.json folder:y") == []
    default, longer = cells(results, "finetune finetune.json folder:x")
    assert default[:6] == ["`finetune/cut-mixmo`", "", "2", "36 k", "50.0 ± 0.0", "2.000 ± 0.000"]
    assert default[6:] == ["50.0 ± 14.1", "1.000 ± 0.141", "0.100 ± 0.000"]
    assert longer[1:4] == ["`--epochs 60 --rho 0`", "1", "108 k"]


def test_check_names_a_page_that_is_out_of_date_and_changes_nothing(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = results / "page.md"
    page.write_text("Before.\n\n<!-- table: runs w4/c -->\n<!-- end of table -->\n\nAfter.\n")
    command = ["reproduce", "--report", "--runs", str(results), "--pages", str(page)]
    before = page.read_text()
    assert main([*command, "--check"]) == 2
    assert "page.md are out of date" in capsys.readouterr().err
    assert page.read_text() == before
    assert main(command) == 0
    assert "| 70.00 (72.00) |" in page.read_text()
    assert page.read_text().endswith("<!-- end of table -->\n\nAfter.\n")
    assert main([*command, "--check"]) == 0


@pytest.mark.parametrize(("marker", "said"), [("runs w5/*", "no finished run w5"), ("run w4/*", "did you mean 'runs'")])
def test_a_wrong_marker_is_named(results: Path, marker: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = results / "page.md"
    page.write_text(f"<!-- table: {marker} -->\n<!-- end of table -->\n")
    assert main(["reproduce", "--report", "--runs", str(results), "--pages", str(page)]) == 2
    assert said in capsys.readouterr().err
