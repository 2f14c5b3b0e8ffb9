"""The tables of the pages have the scores of the runs in results/."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
NUMBER = re.compile(r"\d+\.\d+")


def lines(path: Path) -> list[list[str]]:
    """The cells of every line of a Markdown file's tables."""
    found = [line for line in path.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip(" *") for cell in line[1:-1].split("|")] for line in found]


ROWS = [row for row in lines(RESULTS / "README.md") if row[-1].startswith("`cifar")]


def test_every_run_has_a_row() -> None:
    folders = {str(path.parent.relative_to(RESULTS)) for path in RESULTS.rglob("scores.json")}
    assert folders == {row[-1].strip("`") for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[-1].strip("`"))
def test_rows_have_the_scores_of_their_runs(row: list[str]) -> None:
    """Last epoch, in brackets the best one, each rounded as it is printed."""
    scores = json.loads((RESULTS / row[-1].strip("`") / "scores.json").read_text())
    last, best = scores["last"]["ensemble"], scores["best"]["ensemble"]
    percent = [100 * last["top1"], 100 * best["top1"], 100 * last["top5"]]
    expected = [*percent, last["nll"], last["nllc"], best["nllc"], last["ece"]]
    if scores["last"]["diversity"]:
        expected += [100 * member["top1"] for member in scores["last"]["members"]]
        expected.append(scores["last"]["diversity"]["ratio_error"])
    printed = NUMBER.findall(" ".join(row[-9:-1]))
    assert printed == [f"{n:.{len(text.partition('.')[2])}f}" for n, text in zip(expected, printed, strict=True)]


def test_first_table_of_the_results_page() -> None:
    """Single networks: Top1, NLLc and ECE of the best epoch, by their place among the runs."""
    folders = ("vanilla-b1-batch64", "cutmix-b1-batch64", "linear-mixmo-b4-ghost", "cut-mixmo-b1")
    folders += ("cut-mixmo-b4", "cut-mixmo-b4-ghost-seed1", "mimo-b4-ghost")
    rows = lines(ROOT / "docs" / "results" / "index.md")[1 : 1 + len(folders)]
    for row, folder in zip(rows, folders, strict=True):
        scores = json.loads((RESULTS / "cifar100-wrn28-4" / folder / "scores.json").read_text())
        best = scores["best"]["ensemble"]
        assert [row[2], row[4], row[6]] == [f"{100 * best['top1']:.1f}", f"{best['nllc']:.3f}", f"{best['ece']:.3f}"]
