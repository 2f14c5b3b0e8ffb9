"""YAML of strangers: plain fields are read, what could grow is rejected before it is built."""

import string
from itertools import pairwise
from pathlib import Path

import pytest

from helpers import limited
from mixmo.cli.arguments import read_fields
from mixmo.runs.directory import Run
from mixmo.storage.plain_yaml import LARGEST, TextLoader, parse_yaml, read_yaml
from mixmo.utils.errors import UserError

LETTERS = string.ascii_lowercase
ALIASES = "a: &a [1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in pairwise(LETTERS[:12])
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n" for before, name in pairwise(LETTERS[:12])
)
BOMBS = {
    "aliases": (ALIASES, "line 1 has an anchor"),
    "merges": (MERGES, "line 1 has an anchor"),
    "a merge": ("width: 4\n<<: {mask: cow}\n", "line 2 has .* merge key"),
    "a field twice": ("width: 4\nmask: cow\nwidth: 2\n", "line 3 has 'width' again"),
    "depth": ("width: " + "[" * 40_000 + "]" * 40_000 + "\n", "line 1 is nested"),
    "length": ("width: 4 #" + "x" * LARGEST + "\n", "100,000 characters"),
}


@pytest.mark.parametrize(
    "value",
    [
        "!!bool foo",
        '!!int ""',
        "!!timestamp x",
        "!!float 1",
        "! 1",
        "!a 1",
        "!!set {a}",
        "!!omap [a: 1]",
        "!!python/name:os",
    ],
)
def test_a_tag_is_rejected(tmp_path: Path, value: str):
    """PyYAML constructs the value of a tag without a check: some raised a KeyError or an IndexError."""
    for text in (f"mask: cow\nwidth: {value}\n", "mask: cow\n!!merge width: {lr: 1}\n"):
        (tmp_path / "recipe.yaml").write_text(text)
        for read in (read_fields, lambda file: Run.open(file.parent)):
            with pytest.raises(UserError, match=r"line 2 has a tag \('.*'\); write plain values") as caught:
                read(tmp_path / "recipe.yaml")
            assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "value", [":".join(["1"] + ["59"] * 30_000) + ".5", "0001-01-01 00:00:00 +23:59", "2026-99-99"]
)
def test_a_number_or_date_out_of_range_is_rejected(tmp_path: Path, value: str):
    (tmp_path / "recipe.yaml").write_text(f"lr: {value}\n")
    with pytest.raises(UserError, match="cannot be read as a recipe"):
        Run.open(tmp_path)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_in_a_config_or_a_run_is_rejected(tmp_path: Path, bomb: str):
    text, problem = BOMBS[bomb]
    (tmp_path / "recipe.yaml").write_text(text)
    for read in (read_fields, lambda file: Run.open(file.parent)):
        with limited(0.3), pytest.raises(UserError, match=problem) as caught:
            read(tmp_path / "recipe.yaml")
        assert "recipe.yaml" in str(caught.value)
        assert len(str(caught.value)) < 600


def test_plain_fields_are_read_as_values_or_as_text(tmp_path: Path):
    text = "width: 4\ndecay: [0.5, 0.75]\nmask: cow  # a comment\nstem: null\n'lr': \"0.1\"\n"
    (tmp_path / "a.yaml").write_text(text)
    assert read_yaml(tmp_path / "a.yaml") == {
        "width": 4,
        "decay": [0.5, 0.75],
        "mask": "cow",
        "stem": None,
        "lr": "0.1",
    }
    assert parse_yaml(text, TextLoader)["width"] == "4"


def test_a_long_value_is_cut_in_the_error(tmp_path: Path):
    (tmp_path / "recipe.yaml").write_text(f"width: {'x' * 50_000}\n")
    for read in (read_fields, lambda file: Run.open(file.parent)):
        with pytest.raises(UserError, match=r"xxx\.\.\. \(") as caught:
            read(tmp_path / "recipe.yaml")
        assert len(str(caught.value)) < 600
