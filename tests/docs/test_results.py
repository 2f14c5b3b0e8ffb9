"""The tables of the pages are those that the runs in results/ give."""

from pathlib import Path

import pytest

from mixmo.reproduce.pages import TABLE, filled

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
PAGES = ["README.md", "results/README.md", "docs/results/index.md", "docs/results/uncertainty.md"]
PAGES += ["docs/guides/reproduce.md"]


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_those_of_the_runs(page: str) -> None:
    """`mixmo reproduce --report --runs results --pages PAGE` fills them."""
    text = (ROOT / page).read_text()
    assert TABLE.search(text)
    assert filled(text, RESULTS) == text


def test_every_run_and_every_ensemble_is_in_a_table() -> None:
    tables = TABLE.findall((RESULTS / "README.md").read_text())
    shown = {word.strip("`,") for _, layout, _, body, _ in tables if layout == "runs" for word in body.split()}
    runs = {str(path.parent.relative_to(RESULTS)) for path in RESULTS.rglob("scores.json")}
    assert runs == {word for word in shown if "/" in word}
    assert ("ensembles", "ensembles/*.json") in [(layout, words) for _, layout, words, _, _ in tables]
