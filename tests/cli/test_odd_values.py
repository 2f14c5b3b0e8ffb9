"""Every option of every command, given odd values: accepted as a value, or one sentence; never a traceback."""

import importlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from mixmo.cli.app import COMMANDS
from mixmo.cli.arguments import parse, recipe_of
from mixmo.cli.data import VERBS
from mixmo.cli.parser import Parser
from mixmo.cli.plot import KINDS
from mixmo.engine import Runtime
from mixmo.serve.settings import Limits
from mixmo.utils.errors import UserError

LINES = [
    *(name for name in COMMANDS if name not in ("data", "plot")),
    *(f"data {verb}" for verb in VERBS),
    *(f"plot {kind}" for kind in KINDS),
]
VALUES = ("-1", "0", "1e305", "-1e305", "nan", "inf", "", "99999999999999999999", "9" * 5000, "½", "٣", "\x1b[31m")
VALUES += ("null", "true", "[nan]", "-x", "--", "/", "missing/file", "a\nb", "\udcff")


def parser_of(line: str, monkeypatch: pytest.MonkeyPatch) -> Parser:
    """Return the parser that a command builds."""
    found: list[Parser] = []

    def stop(into: Parser, *_: Any) -> None:
        found.append(into)
        raise UserError("built")

    name, *words = line.split()
    with monkeypatch.context() as patch:
        patch.setattr(Parser, "spelled", stop)
        with pytest.raises(UserError, match="built"):
            importlib.import_module(f"mixmo.cli.{name}").main(words)
    return found[0]


def read(into: Parser, words: list[str]) -> None:
    """Parse a command line, and make of it what the commands make first."""
    parsed = parse(into, words)
    given = vars(parsed)
    for settings in (Runtime, Limits):
        if names := [field.name for field in fields(settings) if field.name in given]:
            settings(**{name: given[name] for name in names})
    if "config" in given:
        recipe_of(parsed)


@pytest.mark.parametrize("line", LINES)
def test_odd_values_are_read_or_raise_one_sentence(line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    into = parser_of(line, monkeypatch)
    needed = [f"{action.option_strings[0]}=x" for action in into._actions if action.option_strings and action.required]
    recipe = ["digits/vanilla"] if "--config" in into.options else ["x"]
    sentences = ["none"]
    for option in [option for option in into.options if option not in ("-h", "--help")]:
        for value in VALUES:
            try:
                read(into, [*recipe, *needed, f"{option}={value}"])
            except UserError as error:
                sentences.append(f"{option}: {error}")
    assert len(max(sentences, key=len)) < 1500
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["-1", "-1.5", "9" * 3000, "digits/", "/", "\x1b[31m", "finetune/vanilla-fast"])
@pytest.mark.parametrize("line", ["show NAME", "train NAME --out run", "bench NAME", "plot pairs NAME"])
def test_a_name_that_is_no_recipe_raises(
    line: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    sentence = said(*[name if word == "NAME" else word for word in line.split()])
    assert "unknown recipe" in sentence
    assert "\x1b" not in sentence
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        "--shard-mb 1e305",
        "--crop 99999999999999999999",
        "--crop 1000000",
        "--crop 8",
        f"--seed {'9' * 5000}",
        "--lr 1e305",
        "--alpha 1e305",
        "--minutes nan",
        "--workers -1",
    ],
)
def test_numbers_that_no_training_can_use_raise_and_write_nothing(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    sentence = said("train", "digits/vanilla", "--out", "run", *options.split())
    assert options.split()[0].strip("-").replace("-", "_") in sentence.replace("-", "_")
    assert len(sentence) < 500
    assert not list(tmp_path.iterdir())
