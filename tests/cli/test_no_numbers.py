"""User-defined metrics that give NaN or infinity: null in JSON, a dash in tables, a gap elsewhere."""

import csv
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from mixmo.cli.app import main
from mixmo.engine import Runtime, train
from mixmo.evaluation.analysis import columns
from mixmo.metrics import DIVERSITY, METRICS
from mixmo.recipes import named
from mixmo.runs.directory import Run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    for registry in (METRICS, DIVERSITY):
        monkeypatch.setattr(registry, "_things", dict(registry._things))
    calls = itertools.count()
    METRICS.add("late")(lambda logits_NK, labels_N: math.nan if next(calls) < 3 else 0.25)  # from epoch 2 on
    METRICS.add("endless")(lambda logits_NK, labels_N: -math.inf)
    DIVERSITY.add("undefined")(lambda logits_PNK, labels_N: torch.full((2, 2), math.nan))
    recipe = named("digits/cut-mixmo").replace(epochs=2, width=1, batch_size=512, repetition=1)
    return train(recipe, tmp_path / "run", Runtime(device="cpu", quiet=True, logger="csv,tensorboard"))


def strict(text: str) -> Any:
    """Parse JSON without the NaN and Infinity that Python alone accepts."""

    def fail(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    return json.loads(text, parse_constant=fail)


def test_json_is_strict_and_tables_show_dashes(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(run.path)
    lines = [strict(line)["test"] for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["ensemble"]["late"] for line in lines] == [None, 0.25]
    assert [line["diversity"]["undefined"] for line in lines] == [None, None]
    scores = strict((run.path / "scores.json").read_text())
    assert [member["endless"] for member in scores["last"]["members"]] == [None, None]
    table = columns(run)
    assert math.isnan(table["test.ensemble.late"][0])
    assert table["test.ensemble.late"][1] == 0.25
    with (run.path / "logs" / "csv" / "metrics.csv").open() as file:
        logged = list(csv.DictReader(file))
    assert [row["test/ensemble/late"] for row in logged] == ["", "0.25"]
    assert "test/ensemble/endless" not in logged[0]
    for words in (["eval", path], ["eval", path, "--on", "digits"], ["eval", path, "--multiplex"], ["analyse", path]):
        assert main([*words, "--json", "--device", "cpu"]) == 0
        strict(capsys.readouterr().out)
    assert main(["eval", path]) == 0
    shown = capsys.readouterr().out
    assert sum(line.split()[-2:] == ["-", "0.2500"] for line in shown.splitlines()) == 6
    assert "undefined -" in shown
    assert main(["analyse", path, "--measure", "undefined"]) == 0
    assert ["A0", ".", "-"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert main(["analyse", path, "--csv"]) == 0
    assert "nan" not in capsys.readouterr().out
    assert main(["plot", "dynamics", path, "--out", str(tmp_path / "a.png")]) == 0
