"""Command lines: spelling of options, types, and errors of one sentence."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mixmo.cli.app import main
from mixmo.cli.arguments import add_recipe, parse, parser, recipe_of
from mixmo.engine import Runtime
from mixmo.recipes import Recipe, named

FAULTS = {  # and the words that the error must have
    "train": ("required", "recipe", "--out"),
    "train digits/vanilla": ("required", "--out"),
    "data get -- --odd": ("required", "--to"),
    "train digits/vanilla --out a --width=1.5": ("--width", "int", "1.5"),
    "train digits/vanilla --out a --width null": ("--width", "int", "null"),
    "train digits/vanilla --out a --encoders=": ("--encoders", "empty"),
    "train digits/vanilla --out a --width": ("--width",),
    "train digits/vanilla --out a --compile=maybe": ("--compile", "maybe"),
    "train digits/vanilla --out a --decay [a]": ("--decay", "list", "[a]"),
    "train digits/vanilla --out a --precision fp4": ("--precision", "fp32 or bf16 or fp16 or fp8", "fp4"),
    "train digits/vanilla --out a --config fields.yaml": ("lr in fields.yaml", "float", "high"),
    "train digits/vanilla --out a --optimizer adam": ("--optimizer",),
    "train digits/vanilla --out a --batchsize 3": ("--batchsize", "did you mean '--batch-size'"),
    "train digits/vanilla --out a 5": ("5",),
    "analyse a b --thresholds 0.5 half --last 3": ("--thresholds", "float", "half"),
    "plot masks --images 1 two": ("--images", "int", "two"),
    "eval a --json --which both": ("--which", "last or best", "both"),
}


@pytest.mark.parametrize("line", FAULTS)
def test_error_names_the_option_and_what_it_expects(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fields.yaml").write_text("epochs: 3\nlr: [high]\n")
    sentence = said(*line.split())
    assert all(word in sentence for word in FAULTS[line])
    assert ("did you mean" in sentence) == ("--batchsize" in line)


def recipe(*words: str) -> Recipe:
    into = parser("test", "")
    add_recipe(into, list(words), needed=False)
    into.add_fields(Runtime, "run")
    return recipe_of(parse(into, list(words)))


def test_options_change_the_named_recipe() -> None:
    expected = named("cifar100/cut-mixmo").replace(
        batch_size=32, lr=0.2, r=float("inf"), decay=(0.5, 0.75), encoders=None, flip=False, augmix=True
    )
    words = "--batch_size 32 --lr=2e-1 --r .inf --decay [0.5,0.75] --encoders null --no-flip --augmix"
    assert recipe("cifar100/cut-mixmo", *words.split()) == expected
    assert recipe(*words.replace("_", "-").split(), "cifar100/cut-mixmo") == expected
    assert recipe() == Recipe()


def test_booleans_of_earlier_versions_still_work() -> None:
    assert not recipe("--flip", "false").flip
    assert not recipe("--flip=false", "--quiet", "true").flip
    assert recipe("--flip", "True", "--quiet", "false").flip


def test_config_reads_the_fields_of_earlier_versions(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("hidden: patchup\nencoders: null\nmembers: 1\n")
    assert recipe("--config", str(tmp_path / "old.yaml")) == Recipe(feature_mixing="patchup", members=1)


def test_help_spells_options_with_dashes_and_groups_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits/vanilla", "--help"]) == 0
    text = capsys.readouterr().out
    headings = ("data", "network", "mixing", "augmentation", "optimisation", "run")
    places = [text.index(f"\n{heading}:\n") for heading in headings]
    assert places == sorted(places)
    words = ("--batch-size INT", "--flip, --no-flip", "--quiet  ", "--precision {fp32,bf16,fp16,fp8}", "fp32)")
    assert all(word in text for word in words)
    assert "--batch_size" not in text


USAGES = {  # and how many arguments are required
    "bench": ("[RECIPE] [options]", 0),
    "show": ("[RECIPE] [options]", 0),
    "train": ("[RECIPE] --out PATH [options]", 1),
    "data get": ("NAME --to PATH [options]", 2),
}


@pytest.mark.parametrize("command", USAGES)
def test_help_marks_required_arguments(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    usage, required = USAGES[command]
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: mixmo {command} {usage}\n")
    assert text.count("(required)") == required


WITHOUT = {  # what the help says of commands without a recipe
    "train": "not needed with --resume, or with --model timm/NAME or torchvision/NAME, whose recipe is finetune/",
    "show": "not needed with --model timm/NAME or torchvision/NAME, whose recipe is finetune/",
}


@pytest.mark.parametrize("command", WITHOUT)
def test_help_names_the_options_that_replace_the_recipe(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert WITHOUT[command] in " ".join(capsys.readouterr().out.split())


def test_path_may_begin_with_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "taken").write_text("")
    assert str(tmp_path / "taken") in said("train", "digits/cut-mixmo", "--out=~/taken")
