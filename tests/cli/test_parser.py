"""Help and faults of a command line are in our words, whatever jsonargparse's are."""

from argparse import ArgumentError
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import jsonargparse
import pytest

from mixmo.cli.app import main

HELPED = f"jsonargparse {version('jsonargparse')} makes its help otherwise: mend `Formatter` of cli/parser.py"
FOUND = f"jsonargparse {version('jsonargparse')} keeps its arguments otherwise: mend `fault` of cli/parser.py"
SAID = {
    "train": "the following arguments are required: recipe, --out",
    "train digits/vanilla": "the following arguments are required: --out",
    "predict a": "the following arguments are required: paths",
    "data get -- --odd": "the following arguments are required: --to",
    "train digits/vanilla --out a --width wide": "width: expected int, got wide",
    "train digits/vanilla --out a --width=1.5": "width: expected int, got 1.5",
    "train digits/vanilla --out a --width null": "width: expected int, got null",
    "train digits/vanilla --out a --width inf": "width: expected int, got inf",
    "train digits/vanilla --out a --encoders=": "encoders: expected int, got nothing",
    "train digits/vanilla --out a --r inf": "r: expected float, got inf; as a number it is written .inf",
    "train digits/vanilla --out a --minutes nan": "minutes: expected float, got nan; as a number it is written .nan",
    "train digits/vanilla --out a --compile maybe": "compile: expected bool, got maybe",
    "train digits/vanilla --out a --decay [a]": "decay: expected a list such as [0.5, 0.75], got [a]",
    "train digits/vanilla --out a --precision fp16": "precision: expected fp32 or bf16, got fp16",
    "train digits/vanilla --out a --width 4 --config fields.yaml": "lr in fields.yaml: expected float, got ['high']",
    "predict a b --sets all": "sets: expected lac or aps or raps, got all",
    "analyse a b --thresholds 0.5 half --last 3": "thresholds: expected float, got half",
    "plot masks --images 1 two": "images: expected int, got two",
    "eval a --json --which both": "which: expected last or best, got both",
}


@pytest.mark.parametrize("line", SAID)
def test_a_fault_is_found_without_the_words_of_jsonargparse(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]
) -> None:
    def worded_otherwise(*_: object) -> NoReturn:
        raise ArgumentError(None, "no")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "fields.yaml").write_text("epochs: 3\nlr: [high]\n")
    monkeypatch.setattr(jsonargparse.ArgumentParser, "error", worded_otherwise)
    assert said(*line.split()).startswith(f"mixmo: {SAID[line]} (see mixmo "), FOUND


def test_anything_else_is_said_as_it_is(said: Callable[..., str]) -> None:
    assert "5" in said("train", "digits/vanilla", "--out", "a", "--width", "4", "5")
    assert "--width" in said("train", "digits/vanilla", "--out", "a", "--width")
    assert "masks" in said("list", "mask")


def test_help_calls_types_by_plain_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits/vanilla", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for told in (
        "(`mixmo list recipes`) (required) ",
        "run directory to write (required, type: path) ",
        "weights are float32 in both. (fp32 or bf16, default: fp32) ",
        "by default all. (type: int) ",
        "(a list such as [0.5, 0.75], default: (0.",
        "stays the same (default: False) ",
        "show this help message and exit ",
    ):
        assert told in text, HELPED
