"""`mixmo analyse`: its results by hand, its output, its errors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mixmo.cli.app import main
from mixmo.evaluation.analysis import analyse, encoder_norms
from mixmo.recipes import Recipe
from mixmo.runs.directory import Run
from mixmo.runs.network import load_network
from mixmo.storage import checksums
from mixmo.storage.weights import load_tensors, save_tensors


def test_accuracy_and_ratio_error_agree_with_a_plain_loop(runs: list[Run]) -> None:
    """Between the three predictors of two runs, sample by sample."""
    found = analyse(runs)
    wrong = []
    for run in runs:
        logits, labels = run.read_logits()
        wrong += [[int(row.argmax()) != int(y) for row, y in zip(member, labels, strict=True)] for member in logits]
    tops = [value for run in found.runs for value in run.members_top1]
    assert tops == pytest.approx([1 - sum(errors) / len(errors) for errors in wrong])
    for i, one in enumerate(wrong):
        for j, two in enumerate(wrong):
            both = sum(a and b for a, b in zip(one, two, strict=True))
            either = sum(a != b for a, b in zip(one, two, strict=True))
            assert found.diversity["ratio_error"][i][j] == pytest.approx(either / (both or 0.5))
    assert found.predictors == [f"{runs[0].path}:0", f"{runs[0].path}:1", f"{runs[1].path}:0"]


def test_the_chosen_epoch_is_analysed(runs: list[Run], tmp_path: Path) -> None:
    """The encoders of the best one are twice those of the last."""
    copy = Run.open(shutil.copytree(runs[0].path, tmp_path / "run"))
    (copy.path / checksums.NAME).unlink()
    tensors = load_tensors(copy.path / "last.safetensors")
    best = {name: 2 * tensor if name.startswith("encoders") else tensor for name, tensor in tensors.items()}
    save_tensors(best, copy.path / "best.safetensors")
    (run,) = analyse([copy], "best", thresholds=[0.3], last=1).runs
    torch.testing.assert_close(torch.tensor(run.encoders), 2 * encoder_norms(load_network(runs[0], "last")))
    assert [active.threshold for active in run.active] == [0.3]
    assert len(run.active[0].layers) == 6  # WRN-10: three stages of one block
    assert run.epochs == 1
    assert run.means["test.ensemble.top1"] == runs[0].read_metrics()[-1]["test"]["ensemble"]["top1"]


@pytest.mark.parametrize(("options", "counted"), [({"last": 5}, 1), ({"last": 6}, 2), ({}, 2)])
def test_epochs_that_were_not_scored_are_not_counted(
    runs: list[Run], tmp_path: Path, options: dict[str, int], counted: int
) -> None:
    """The means of the last ten epochs, with `--score_every 5`, are of two."""
    run = Run.open(shutil.copytree(runs[0].path, tmp_path / "run"))
    (run.path / checksums.NAME).unlink()
    lines = [line | {"epoch": 5 * (number + 1)} for number, line in enumerate(2 * runs[0].read_metrics())]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (found,) = analyse([run], **options).runs
    assert (found.epochs, found.means["epoch"]) == (counted, 20 - 2.5 * (counted - 1))


def test_a_run_of_several_networks_is_analysed_as_several_runs(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = runs[1].recipe.replace(networks=2)
    Run.create(tmp_path / "two", recipe)
    for i in (0, 1):
        (tmp_path / "two" / str(i)).symlink_to(runs[1].path)
    assert len(analyse([Run.open(tmp_path / "two")]).predictors) == 2
    assert main(["analyse", str(tmp_path / "two"), "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 * len(runs[1].read_metrics())


def test_json_is_the_analysis(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyse", *[str(run.path) for run in runs], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(json.dumps(analyse(runs).to_dict()))
    assert [active["threshold"] for active in found["runs"][0]["active"]] == [0.2, 0.3, 0.4, 0.5]
    assert {"threshold", "layers", "by_layer", "by_filter"} == found["runs"][0]["active"][0].keys()
    assert {len(matrix) for matrix in found["diversity"].values()} == {3}
    assert found["runs"][1]["separation"] is None


def test_tables_hold_the_analysis(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyse", *[str(run.path) for run in runs], "--measure", "agreement"]) == 0
    text = capsys.readouterr().out
    matrix = analyse(runs).diversity["agreement"]
    for part in (
        "A0",
        "A1",
        "B0",
        "agreement",
        f"{analyse(runs).runs[0].separation:.3f}",
        f"{matrix[0][2]:.3f}",
        "mean over layers",
        "t = 0.5",
    ):
        assert part in text
    assert main(["analyse", str(runs[1].path)]) == 0
    assert "ratio_error" not in capsys.readouterr().out  # a single predictor has no pairs


def test_csv_has_one_line_per_epoch(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyse", str(runs[0].path), "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("run,epoch,step,lr,p,train.loss")
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["RUN", "--measure", "agrement"], "did you mean 'agreement'"),
        (["RUN", "--thresholds", "1.5"], "in [0, 1]"),
        (["RUN", "--last", "0"], ">= 1"),
        (["RUN", "--which", "first"], "first"),
        (["nowhere"], "not a run directory"),
        ([], "runs"),
        (["RUN", "--jsn"], "did you mean '--json'"),
    ],
)
def test_bad_input_raises_an_error(runs: list[Run], said: Callable[..., str], words: list[str], says: str) -> None:
    assert says in said("analyse", *[runs[0].path if word == "RUN" else word for word in words])


def test_runs_without_weights_or_of_other_test_sets_raise_an_error(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Run.create(tmp_path / "fresh", Recipe())
    assert main(["analyse", str(tmp_path / "fresh")]) == 2
    assert "--resume" in capsys.readouterr().err
    other = Run.open(shutil.copytree(runs[0].path, tmp_path / "other"))
    (other.path / checksums.NAME).unlink()
    tensors = load_tensors(runs[0].path / "logits-last.safetensors")
    save_tensors(tensors | {"labels": (tensors["labels"] + 1) % 10}, other.path / "logits-last.safetensors")
    assert main(["analyse", str(runs[0].path), str(other.path)]) == 2
    assert "other data" in capsys.readouterr().err
