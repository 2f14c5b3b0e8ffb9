"""The commands: what they print, and their exit status."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mixmo.cli.app import COMMANDS, main
from mixmo.cli.list import KINDS
from mixmo.cli.tables import COLUMNS
from mixmo.engine.estimate import Estimate
from mixmo.metrics import Diversity, Scores
from mixmo.models import FAMILIES, Parts
from mixmo.recipes import named
from mixmo.runs.directory import Run

SMALL = ["--width", "1", "--epochs", "1", "--batch-size", "128", "--device", "cpu", "--quiet"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "digits/cut-mixmo", *SMALL, "--out", str(out)]) == 0
    return out


def test_train_prints_the_scores_of_training_without_scoring_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("mixmo.evaluation.run_scores.evaluate", None)
        assert main(["train", "digits/cut-mixmo", *SMALL, "--out", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert main(["eval", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == printed


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {command} " in text for command in COMMANDS)


@pytest.mark.parametrize("words", [["train"], ["plot", "masks"], ["data", "get"]])
def test_help_command_prints_the_help_of_a_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", *words]) == 0
    text = capsys.readouterr().out
    assert main([*words, "--help"]) == 0
    assert capsys.readouterr().out == text
    assert text.startswith(f"usage: mixmo {' '.join(words)}")


def test_help_shows_the_defaults_of_the_given_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    for recipe, epochs in (("digits/cut-mixmo", 30), ("tiny-imagenet/vanilla", 1200), ("no/such", 300)):
        assert main(["train", recipe, "--help" if epochs == 30 else "-h"]) == 0
        assert f"(default: {epochs})" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"mixmo {command}" in text
    assert not [word for word in ("None", "<class", "Literal", "SUPPRESS", "_") if f" {word}" in text]


def test_module_prints_its_version() -> None:
    done = subprocess.run([sys.executable, "-m", "mixmo", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == __import__("mixmo").__version__


def test_eval_prints_the_stored_scores(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["last"] == json.loads((run / "scores.json").read_text())["last"]
    copy = shutil.copytree(run, tmp_path / "copy")
    assert main(["eval", str(run), str(copy), "--source", "weights", "--device", "cpu", "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["last"]["ensemble"]["nll"] == pytest.approx(scores["last"]["ensemble"]["nll"])
    assert len(both["last"]["members"]) == 4


@pytest.mark.parametrize(("number", "who"), [(0, ["ensemble", "member 0", "member 1"]), (1, ["network"])])
def test_eval_tables_hold_the_scores(
    runs: list[Run], number: int, who: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    scores = json.loads((runs[number].path / "scores.json").read_text())

    def rows(report: dict[str, Any]) -> list[list[str]]:
        found = [report["ensemble"], *(report["members"] if len(who) > 1 else [])]
        shares = [[f"{100 * one[name]:.2f}" for name in ("top1", "top5")] for one in found]
        numbers = [[f"{one[name]:.4f}" for name in ("nll", "nllc", "ece", "brier")] for one in found]
        return [[name, *first, *then] for name, first, then in zip(who, shares, numbers, strict=True)]

    best = f"best ({scores['best_epoch']})"
    once = scores["best"] == scores["last"]  # printed once where the last epoch is the best one
    for words, reports in (((), ("best",) if once else ("last", "best")), (("--on", "digits"), ("last",))):
        assert main(["eval", str(runs[number].path), *words]) == 0
        text = capsys.readouterr().out
        table = [cells[-7:] for line in text.splitlines() if len(cells := re.split("  +", line.strip())) >= 7]
        assert table == [["who", *COLUMNS.values()], *[row for which in reports for row in rows(scores[which])]]
        assert ("between members" in text) == (len(who) > 1)
        assert ("best epoch chosen by the test set" in text) == ("best" in reports)
        if diversity := scores["last"]["diversity"]:
            shares = f"ratio-error {diversity['ratio_error']:.3f}, agreement {100 * diversity['agreement']:.2f} %\n"
            assert shares in text
        if "best" in reports:
            assert [line.split("  ")[0] for line in text.splitlines() if line.startswith(("last", "best ("))] == (
                [f"last, {best}"] if once else ["last", best]
            )
            assert f"{scores['parameters']:,} parameters" in text
            assert f"{scores['multiply_adds'] / 1e9:.4f} G multiply-adds" in text


def test_config_overrides_the_recipe_and_options_override_config(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("width: 2\nepochs: 1\nbatch_size: 128\nlr: 1e-1\ndecay: [0.5]\n")
    out = tmp_path / "run"
    options = ["--width", "1", "--config", str(tmp_path / "more.yaml"), "--device", "cpu", "--quiet"]
    assert main(["train", "digits/cut-mixmo", *options, "--out", str(out)]) == 0
    recipe = Run.open(out).recipe
    assert (recipe.width, recipe.epochs, recipe.batch_size, recipe.mask) == (1, 1, 128, "cut")
    assert (recipe.lr, recipe.decay) == (0.1, (0.5,))


def test_training_from_the_recipe_of_a_run_gives_the_same_scores(run: Path, tmp_path: Path) -> None:
    options = ["--config", str(run / "recipe.yaml"), "--device", "cpu", "--quiet"]
    assert main(["train", "digits/cut-mixmo", *options, "--out", str(tmp_path / "again")]) == 0
    again, first = (json.loads((path / "scores.json").read_text()) for path in (tmp_path / "again", run))
    assert again["last"] == first["last"]


def test_every_evaluation_takes_a_run_of_several_networks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: Callable[..., str]
) -> None:
    out = tmp_path / "de"
    assert main(["train", "digits/de2", *SMALL, "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["eval", str(out), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["last"]["members"]) == 2
    assert "digits" in said("eval", out, "--ood", "digits", "--device", "cpu")
    assert main(["analyse", str(out), "--json"]) == 0
    file = tmp_path / "net.pt2"
    sentence = said("export", out, "--to", file)
    assert "holds 2 networks" in sentence
    assert not file.exists()


@pytest.mark.parametrize(
    "command",
    [
        "eval RUN --on digits",
        "eval RUN --multiplex",
        "predict RUN tests/samples",
        "analyse RUN",
        "export RUN --to FILE",
    ],
)
def test_which_selects_the_epoch(
    command: str, runs: list[Run], tmp_path: Path, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last epoch by default; of this run the best one was not copied."""
    monkeypatch.chdir(Path(__file__).parents[2])
    path = shutil.copytree(runs[0].path, tmp_path / "run", ignore=shutil.ignore_patterns("*best*"))
    words = command.replace("RUN", str(path)).replace("FILE", str(tmp_path / "net.pt2")).split()
    assert "best.safetensors" in said(*words, "--which", "best")
    assert main(words) == 0


@pytest.mark.parametrize(
    "command",
    ["eval RUN", "predict RUN tests/samples", "analyse RUN", "reproduce --list", "data corrupt cifar10 --to FOLDER"],
)
def test_unknown_device_is_an_error(command: str, runs: list[Run], tmp_path: Path, said: Callable[..., str]) -> None:
    words = command.replace("RUN", str(runs[0].path)).replace("FOLDER", str(tmp_path)).split()
    assert "cudaa" in said(*words, "--device", "cudaa")


@pytest.mark.parametrize("kind", KINDS)
def test_list_describes_everything_within_the_terminal(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert all(KINDS[kind]().values())
    assert main(["list", kind]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in KINDS[kind]())
    assert max(map(len, out.splitlines())) <= 80


def test_list_recipes_filters_and_gives_scores(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: Callable[..., str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["list", "recipes", "cifar100/cut-mixmo"]) == 0
    text = capsys.readouterr().out
    assert "digits/" not in text
    assert "paper: Top1 84.38 %, NLLc 0.563\n" in text
    assert "here: Top1 81.79 %, NLLc 0.625 (paper: Top1 81.68 %, NLLc 0.646) with --width 4" in text
    assert "33.3 min on one NVIDIA H200" in text
    assert "paper: Top1 85.18 %, NLLc 0.545; not measured here" in text
    assert "imagenet1k" in said("list", "recipes", "imagenet1k")


def test_list_names_backbones_and_the_recipes_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("timm/NAME", "torchvision/NAME", "module:function", "finetune/cut-mixmo"))


def test_lists_have_every_printed_score_and_documented_data_set() -> None:
    shown = {*Scores._fields, *Diversity._fields} - {"temperatures", "own"}
    assert shown <= KINDS["metrics"]().keys()
    page = next((Path(__file__).parents[2] / "docs").rglob("data.md"))
    table = page.read_text().partition("## Get")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(.*?)`", row)} <= KINDS["datasets"]().keys()


def test_show_prints_fields_scores_and_cost(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["show", "cifar100/cut-mixmo", "--no-time"]) == 0
    text = capsys.readouterr().out
    assert "# paper: Top1 84.38 %, NLLc 0.563\n# here: " in text
    assert "36,601,416 parameters, 5.9571 G multiply-adds" in text
    assert "468,600 steps, 1,562 per epoch; learning rate 0.025" in text
    (tmp_path / "shown.yaml").write_text(text)
    assert main(["show", "digits/cut-mixmo", "--config", str(tmp_path / "shown.yaml"), "--no-time"]) == 0
    assert "468,600 steps" in capsys.readouterr().out
    assert main(["show", "imagenet/cut-mixmo", "--width", "5", "--no-time"]) == 0
    assert "# paper: Top1 78.20 %, NLLc 0.867 (last epoch); not measured here" in capsys.readouterr().out
    assert main(["show", "digits/cut-mixmo", "--device", "cpu", "--width", "1", "--batch-size", "32"]) == 0
    text = capsys.readouterr().out
    assert "images/s" in text
    assert "batch_size: 32" in text


def test_show_prints_a_recipe_whose_images_are_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["show", "finetune/vanilla"]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text) == named("finetune/vanilla").to_dict()
    assert "# cost not known without the data set: data set 'folder:photos@224': no such folder" in text
    assert main(["show", "finetune/vanilla", "--dataset", "photo"]) == 2


def test_show_counts_a_family_that_needs_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others are counted without memory for their weights, so that wide networks take no longer."""

    def scaled(depth: int, width: int) -> Parts:
        assert torch.ones(1).item() == 1
        return FAMILIES["wrn"](depth, width)

    def size(model: str) -> str:
        assert main(["show", "digits/cut-mixmo", "--model", model, "--no-time"]) == 0
        return next(line for line in capsys.readouterr().out.splitlines() if "parameters," in line)

    monkeypatch.setitem(FAMILIES, "scaled", scaled)
    assert size("scaled") == size("wrn")


def test_show_gives_the_time_of_all_networks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("mixmo.cli.show.estimate", lambda *_, **__: Estimate("CPU", 1200, 40, 0.25, 300.0))
    for recipe, time in (("digits/de2", "10.0 min"), ("digits/vanilla", "5.0 min")):
        assert main(["show", recipe, "--batch-size", "50", "--device", "cpu"]) == 0
        text = capsys.readouterr().out
        assert ("each of 2 networks\n" in text) == (recipe == "digits/de2")
        assert f"# training time about {time} on this CPU (200 images/s)" in text


def test_bench_prints_units_and_measures_a_vanilla_network_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    options = ["--width", "1", "--device", "cpu", "--seconds", "0.01", "--repeats", "1"]
    assert main(["bench", "digits/vanilla", *options]) == 0
    title, units, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("wrn10_1, batch size 64, fp32, eager step")
    assert {"images/s", "ms", "TFLOP/s", "GiB"} <= set(units.split())
    measured = [row.split("  ")[1] for row in rows if row.startswith("vanilla")]
    assert measured == ["plain eager loop", "training step", "training end to end", "prediction"]


def test_bad_input_is_one_sentence_that_names_it(run: Path, tmp_path: Path, said: Callable[..., str]) -> None:
    out = ["--out", str(tmp_path / "never")]
    train = ["train", "digits/cut-mixmo"]
    files = {
        "typo.yaml": ("widht: 3\n", "'width'"),
        "wrong.yaml": ("width: wide\n", "wide"),
        "list.yaml": ("- 1\n", "cannot be read"),
        "broken.yaml": ("width: [\n", "cannot be read"),
    }
    cases = [
        (["trian"], "'train'"),
        (["train", "digits/cutmixmo", *out], "'digits/cut-mixmo'"),
        ([*train, "--width", "wide", *out], "wide"),
        ([*train, "--p", "2", *out], "p = 2.0"),
        ([*train, "--repetition", "3", *out], "batch_size"),
        ([*train, f"--config={tmp_path / 'absent.yaml'}", *out], "absent.yaml"),
        ([*train, "--out", str(run)], "--resume"),
        ([*train, "--out", str(run), "--resume"], "recipe"),
        (["train", "cifar10/vanilla", "--data", str(tmp_path), *out], "cifar-10-batches-py"),
        (["eval", str(tmp_path)], "run directory"),
        ([*train, "--out", str(run / "recipe.yaml" / "under")], "recipe.yaml"),
        (["list", "mask"], "masks"),
    ]
    for file, (text, word) in files.items():
        (tmp_path / file).write_text(text)
        cases.append(([*train, "--config", str(tmp_path / file), *out], word))
    for arguments, expected in cases:
        assert expected in said(*arguments), arguments
    assert not (tmp_path / "never").exists()


def test_eval_names_the_damaged_file_of_a_run(run: Path, tmp_path: Path, said: Callable[..., str]) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in run.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    (copy / "logits-last.safetensors").write_bytes(b"not tensors")
    assert "logits-last.safetensors" in said("eval", copy)
    (copy / "scores.json").unlink()
    assert "--resume" in said("eval", copy)
    (copy / "recipe.yaml").write_text("width: 10\nlearning_rate: 3\n")
    assert "recipe.yaml" in said("eval", copy)
