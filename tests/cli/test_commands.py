"""The command line: what it prints, what it refuses, and with which status."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from mixmo.cli.app import COMMANDS, main
from mixmo.cli.list import KINDS
from mixmo.cli.tables import SCORED
from mixmo.engine.estimate import Estimate
from mixmo.metrics import Diversity, Scores
from mixmo.runs.directory import Run

SMALL = ["--width", "1", "--epochs", "1", "--batch_size", "128", "--device", "cpu", "--quiet", "true"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "digits/cut-mixmo", *SMALL, "--out", str(out)]) == 0
    return out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {command} " in text for command in COMMANDS)


def test_help_of_a_recipe_has_its_own_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    for recipe, epochs in (("digits/cut-mixmo", 30), ("tiny-imagenet/vanilla", 1200), ("no/such", 300)):
        assert main(["train", recipe, "--help" if epochs == 30 else "-h"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert f"Passes over the training set. (type: int, default: {epochs})" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"mixmo {command}" in text
    raw = [word for word in ("| null", ": null", "<class", "Literal", "--print_config") if word in text]
    assert not raw, (
        f"jsonargparse {version('jsonargparse')} makes its help otherwise: mend `Formatter` of cli/parser.py"
    )


def test_module_and_version() -> None:
    done = subprocess.run([sys.executable, "-m", "mixmo", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == __import__("mixmo").__version__


def test_eval_prints_the_stored_scores(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["last"] == Run(run).json("scores.json")["last"]
    copy = shutil.copytree(run, tmp_path / "copy")
    assert main(["eval", str(run), str(copy), "--source", "weights", "--device", "cpu", "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["last"]["ensemble"]["nll"] == pytest.approx(scores["last"]["ensemble"]["nll"])
    assert len(both["last"]["members"]) == 4


@pytest.mark.parametrize(("number", "who"), [(0, ["ensemble", "member 0", "member 1"]), (1, ["network"])])
def test_eval_tables_hold_the_scores(
    runs: list[Run], number: int, who: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    scores = runs[number].json("scores.json")

    def told(report: dict[str, Any]) -> list[list[str]]:
        found = [report["ensemble"], *(report["members"] if len(who) > 1 else [])]
        shares = [[f"{100 * one[name]:.2f}" for name in ("top1", "top5")] for one in found]
        numbers = [[f"{one[name]:.4f}" for name in ("nll", "nllc", "ece", "brier")] for one in found]
        return [[name, *first, *then] for name, first, then in zip(who, shares, numbers, strict=True)]

    for words, reports in (((), ("last", "best")), (("--on", "digits"), ("last",))):
        assert main(["eval", str(runs[number].path), *words]) == 0
        text = capsys.readouterr().out
        table = [cells[-7:] for line in text.splitlines() if len(cells := re.split("  +", line.strip())) >= 7]
        assert table == [list(SCORED), *[row for which in reports for row in told(scores[which])]]
        assert ("between members" in text) == (len(who) > 1)
        assert ("best epoch chosen by the test set" in text) == ("best" in reports)
        if diversity := scores["last"]["diversity"]:
            shares = f"ratio-error {diversity['ratio_error']:.3f}, agreement {100 * diversity['agreement']:.2f} %\n"
            assert shares in text
        if "best" in reports:
            assert [line.split("  ")[0] for line in text.splitlines() if line.startswith(("last ", "best ("))] == [
                "last",
                f"best ({scores['best_epoch']})",
            ]
            cost = (
                f"{scores['parameters']:,} parameters, {scores['multiply_adds'] / 1e9:.4f} G multiply-adds a prediction"
            )
            assert cost in text


def test_a_yaml_file_overrides_and_the_command_line_overrides_it(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("width: 2\nepochs: 1\nbatch_size: 128\n")
    out = tmp_path / "run"
    options = ["--config", str(tmp_path / "more.yaml"), "--width", "1", "--device", "cpu", "--quiet", "true"]
    assert main(["train", "digits/cut-mixmo", *options, "--out", str(out)]) == 0
    recipe = Run(out).recipe
    assert (recipe.width, recipe.epochs, recipe.batch_size, recipe.mask) == (1, 1, 128, "cut")


def test_a_runs_recipe_can_be_trained_again(run: Path, tmp_path: Path) -> None:
    options = ["--config", str(run / "recipe.yaml"), "--device", "cpu", "--quiet", "true"]
    assert main(["train", "digits/cut-mixmo", *options, "--out", str(tmp_path / "again")]) == 0
    again, first = (json.loads((path / "scores.json").read_text()) for path in (tmp_path / "again", run))
    assert again["last"] == first["last"]


def test_an_ensemble_is_a_run_for_every_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: Callable[..., str]
) -> None:
    out = tmp_path / "de"
    assert main(["train", "digits/de2", *SMALL, "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["eval", str(out), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["last"]["members"]) == 2
    assert "was trained on; give another data set" in said("eval", out, "--ood", "digits", "--device", "cpu")
    assert main(["analyse", str(out), "--json"]) == 0
    file = tmp_path / "net.pt2"
    sentence = said("export", out, "--to", file)
    assert f"holds 2 networks, and a file holds one; export each of its folders (mixmo export {out}/0 --to" in sentence
    assert f"--to {tmp_path}/net-0.pt2, ...)" in sentence
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
def test_the_epoch_that_is_asked_for(
    command: str, runs: list[Run], tmp_path: Path, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run of which only the last one was copied; which is what is taken unasked."""
    monkeypatch.chdir(Path(__file__).parents[2])
    path = shutil.copytree(runs[0].path, tmp_path / "run", ignore=shutil.ignore_patterns("*best*"))
    words = command.replace("RUN", str(path)).replace("FILE", str(tmp_path / "net.pt2")).split()
    assert "best.safetensors is missing" in said(*words, "--which", "best")
    assert main(words) == 0


@pytest.mark.parametrize(
    "command",
    ["eval RUN", "predict RUN tests/samples", "analyse RUN", "reproduce --list", "data corrupt cifar10 --to FOLDER"],
)
def test_a_device_that_is_not_there(command: str, runs: list[Run], tmp_path: Path, said: Callable[..., str]) -> None:
    words = command.replace("RUN", str(runs[0].path)).replace("FOLDER", str(tmp_path)).split()
    assert "device 'cudaa' cannot be used here" in said(*words, "--device", "cudaa")


@pytest.mark.parametrize("kind", KINDS)
def test_list(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, none without its explanation."""
    for name, text in KINDS[kind]().items():
        assert text, f"{kind} {name} has no description"
    assert main(["list", kind]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in KINDS[kind]())


def test_lists_have_what_is_printed_and_read_elsewhere() -> None:
    """Every score of a report, every data set of docs/data.md."""
    shown = {*Scores._fields, *Diversity._fields} - {"temperatures", "own"}
    assert shown <= KINDS["metrics"]().keys()
    table = (Path(__file__).parents[2] / "docs" / "data.md").read_text().partition("## Get")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(.*?)`", row)} <= KINDS["datasets"]().keys()


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "cifar100/cut-mixmo", "--time", "false"]) == 0
    text = capsys.readouterr().out
    assert "36,601,416 parameters, 5.9571 G multiply-adds" in text
    assert "468,600 steps, 1,562 an epoch; learning rate 0.025" in text
    assert main(["show", "cifar100/cut-mixmo-fast", "--time", "false"]) == 0
    assert "fast: a short schedule" in capsys.readouterr().out
    assert main(["show", "digits/cut-mixmo", "--device", "cpu", "--width", "1", "--batch-size", "32"]) == 0
    text = capsys.readouterr().out
    assert "images/s" in text
    assert "batch_size: 32" in text


def test_show_tells_the_time_of_all_networks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mixmo.cli.show.estimate", lambda *_, **__: Estimate("CPU", 1200, 40, 0.25, 300.0))
    for recipe, time in (("digits/de2", "10:00"), ("digits/vanilla", "5:00")):
        assert main(["show", recipe, "--batch_size", "50", "--device", "cpu"]) == 0
        text = capsys.readouterr().out
        assert ("# each of 2 networks\n" in text) == (recipe == "digits/de2")
        assert text.endswith(f"# about {time} on this CPU, evaluation not counted (200 images/s)\n")


def test_bad_input(run: Path, tmp_path: Path, said: Callable[..., str]) -> None:
    out = ["--out", str(tmp_path / "never")]
    train = ["train", "digits/cut-mixmo"]
    (tmp_path / "typo.yaml").write_text("widht: 3\n")
    (tmp_path / "wrong.yaml").write_text("width: wide\n")
    (tmp_path / "twice.yaml").write_text("width: 1\nlr: 0.1\nwidth: 2\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "broken.yaml").write_text("width: [\n")
    (tmp_path / "bytes.yaml").write_bytes(b"width: \xff\n")
    (tmp_path / "date.yaml").write_text("width: 2020-99-99\n")
    (tmp_path / "tag.yaml").write_text("augmix: !!bool x\n")
    (tmp_path / "deep.yaml").write_text("width: " + "[" * 3000)
    cases = [
        (["trian"], "did you mean 'train'"),
        (["train", "digits/cutmixmo", *out], "did you mean 'digits/cut-mixmo'"),
        ([*train, "--widht", "3", *out], "did you mean '--width'"),
        ([*train, "--width", "wide", *out], "width: expected int, got wide"),
        ([*train, "--p", "2", *out], "p = 2.0 is no probability"),
        ([*train, "--repetition", "3", *out], "does not divide batch_size"),
        ([*train, "--config", str(tmp_path / "typo.yaml"), *out], "did you mean 'width'"),
        ([*train, "--config", str(tmp_path / "wrong.yaml"), *out], "wrong.yaml: expected int, got wide"),
        ([*train, "--config", str(tmp_path / "twice.yaml"), *out], "twice.yaml gives width more than once"),
        ([*train, "--config", str(tmp_path / "list.yaml"), *out], "holds no fields"),
        ([*train, "--config", str(tmp_path / "broken.yaml"), *out], "broken.yaml cannot be read"),
        ([*train, "--config", str(tmp_path / "date.yaml"), *out], "date.yaml cannot be read: month must be in 1..12"),
        ([*train, "--config", str(tmp_path / "tag.yaml"), *out], "tag.yaml cannot be read"),
        ([*train, "--config", str(tmp_path / "deep.yaml"), *out], "deep.yaml cannot be read: maximum recursion depth"),
        ([*train, f"--config={tmp_path / 'bytes.yaml'}", *out], "bytes.yaml cannot be read: 'utf-8' codec"),
        ([*train, "--config", str(tmp_path / "absent.yaml"), *out], "absent.yaml cannot be read: No such file"),
        ([*train], "out"),
        (["train"], "recipe"),
        (["train", "--out", str(tmp_path / "a" / "b"), "digits/cut-mixmoo"], "did you mean 'digits/cut-mixmo'"),
        ([*train, "--out", str(run)], "exists already; give --resume"),
        ([*train, "--out", str(run), "--resume"], "is a run of another recipe"),
        (["train", "cifar10/vanilla", "--data", str(tmp_path), *out], "cifar-10-batches-py"),
        (["eval", str(tmp_path)], "is no run directory"),
        ([*train, "--out", str(run / "recipe.yaml" / "under")], "recipe.yaml"),
        (["eval"], "models"),
        (["list", "mask"], "masks"),
    ]
    for arguments, expected in cases:
        assert expected in said(*arguments), arguments
    assert not (tmp_path / "never").exists()


def test_damaged_runs_are_named(run: Path, tmp_path: Path, said: Callable[..., str]) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in run.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    (copy / "logits-last.safetensors").write_bytes(b"not tensors")
    assert "logits-last.safetensors is damaged" in said("eval", copy)
    (copy / "scores.json").unlink()
    assert "scores.json is missing" in said("eval", copy)
    (copy / "recipe.yaml").write_text("width: 10\nlearning_rate: 3\n")
    assert "cannot be read as a recipe" in said("eval", copy)
