"""The blocks of every tutorial run in order, as printed: Python, and the commands of `console` blocks."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from mixmo.cli.app import main

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "tutorials").glob("*.md"))


def run_page(page: Path) -> dict[str, Any]:
    """Execute the page's blocks in the working directory and return the names they defined."""
    names: dict[str, Any] = {"__name__": "tutorial"}
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE):
        if language == "python":
            exec(compile(code, str(page), "exec"), names)
        elif language == "console":
            for line in code.splitlines():
                assert main(shlex.split(line)[1:]) == 0, line
    return names


def check_wrap(names: dict[str, Any]) -> None:
    assert (names["after"] - names["before"]).abs().max() < 1e-4
    assert names["report"].ensemble.top1 > 0.95
    assert names["multiplexed"].ensemble.top1 > 0.85  # the members are diverse
    assert names["largest"] < 1e-4


def check_uncertainty(names: dict[str, Any]) -> None:
    prediction, right = names["prediction"], names["right"]
    assert prediction.entropy[~right].mean() > prediction.entropy[right].mean()
    assert names["separation"] > 0.7
    assert names["covered"] > 0.85
    assert names["kept"].sum() > 0


def check_reproduce(names: dict[str, Any]) -> None:
    scores = json.loads((names["run"].path / "scores.json").read_text())
    assert scores["last"]["ensemble"]["top1"] == pytest.approx(names["report"].ensemble.top1)


CHECKS = {"wrap": check_wrap, "uncertainty": check_uncertainty, "reproduce": check_reproduce}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tutorial_runs_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CHECKS[page.stem](run_page(page))
