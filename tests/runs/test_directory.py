"""A run directory is read once and verified; a damaged or missing file gives one sentence that names it."""

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mixmo import UserError
from mixmo.cli.app import main
from mixmo.engine import Runtime, train
from mixmo.evaluation.run_scores import score_runs
from mixmo.recipes import named
from mixmo.runs.directory import WHICH, Run
from mixmo.runs.network import load_network
from mixmo.storage import checksums
from mixmo.storage.weights import load_tensors, save_tensors

SMALL = named("digits/cut-mixmo").replace(epochs=2, width=1, batch_size=512)
QUIET = Runtime(device="cpu", quiet=True)
DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "another dict": lambda path: path.write_text('{"a": 1}\n'),
}
READERS = {
    "recipe.yaml": ["eval"],
    "dataset.json": ["eval", "--source", "weights"],
    "scores.json": ["eval"],
    "metrics.jsonl": ["analyse"],
    "logits-last.safetensors": ["eval"],
    "last.safetensors": ["analyse"],
}
FINISHED = ("last.safetensors", "best.safetensors", "logits-last.safetensors", "logits-best.safetensors")
EDITED = {  # another number, in a file that reads as before
    "recipe.yaml": (b"seed: 0", b"seed: 1"),
    "scores.json": (b'"parameters": ', b'"parameters": 1'),
    "dataset.json": (b'"mean": [\n    0.', b'"mean": [\n    1.'),
    "environment.json": (b'"threads": ', b'"threads": 1'),
    "metrics.jsonl": (b'"step": ', b'"step": 1'),
}


def copied(run: Run, folder: Path) -> Run:
    return Run.open(shutil.copytree(run.path, folder / "run"))


def read_all(run: Run) -> None:
    """Read what the commands read of a finished run."""
    run = Run.open(run.path)
    run.read_scores(), run.read_dataset(), run.read_environment(), run.read_metrics()
    for which in WHICH:
        load_network(run, which)
        run.read_logits(which)


def test_recipe_is_read_once_and_json_files_once(
    runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, reads, read_text = copied(runs[0], tmp_path), list[str](), Path.read_text

    def counted(path: Path, *given: object, **options: object) -> str:
        reads.append(path.name)
        return read_text(path, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", counted)
    for _ in range(2):
        assert run.recipe.epochs == 2
        run.read_scores(), run.read_dataset(), run.read_environment()
    assert [name for name in reads if name != checksums.NAME] == ["scores.json", "dataset.json", "environment.json"]


def test_what_is_written_is_what_is_read_next(runs: list[Run], tmp_path: Path) -> None:
    run = copied(runs[0], tmp_path)
    (run.path / checksums.NAME).unlink()
    before = run.read_dataset()
    run.write("dataset.json", json.dumps(before | {"name": "another"}))
    assert run.read_dataset()["name"] == "another"
    run.write_recipe(run.recipe.replace(seed=7))
    assert run.recipe.seed == Run.open(run.path).recipe.seed == 7
    run.finish(run.read_scores() | {"best_epoch": 5})
    assert run.read_scores()["best_epoch"] == Run.open(run.path).read_scores()["best_epoch"] == 5


def test_recipe_with_field_names_of_earlier_versions_opens(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", named("digits/manifold-mixup"))
    text = (run.path / "recipe.yaml").read_text()
    (run.path / "recipe.yaml").write_text(text.replace("feature_mixing:", "hidden:"))
    assert Run.open(run.path).recipe == run.recipe


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", READERS)
def test_damaged_file_is_named_in_one_sentence(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, damage: str
) -> None:
    shutil.copytree(runs[0].path, tmp_path / "run")
    DAMAGE[damage](tmp_path / "run" / name)
    command, *options = READERS[name]
    assert main([command, str(tmp_path / "run"), *options]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    assert str(tmp_path / "run" / name) in said


def test_recipe_cut_short_is_an_error(runs: list[Run], tmp_path: Path) -> None:
    """Its missing fields would get their defaults."""
    whole = (runs[0].path / "recipe.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(whole[: whole.index("\nmembers:")])
    with pytest.raises(UserError, match=r"recipe.yaml .*not complete"):
        Run.open(tmp_path)


def test_recipe_with_an_unregistered_component_raises_an_error(runs: list[Run], tmp_path: Path) -> None:
    whole = (runs[0].path / "recipe.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(whole.replace("model: wrn\n", "model: mine\n"))
    with pytest.raises(UserError, match=r"unknown model 'mine'.*register"):
        Run.open(tmp_path)
    (tmp_path / "recipe.yaml").write_text(f"{whole}lrr: 0.1\n")  # of another version
    with pytest.raises(UserError, match=r"unknown field 'lrr'"):
        Run.open(tmp_path)


def test_missing_file_of_an_unfinished_run_raises_an_error(runs: list[Run], tmp_path: Path):
    run = copied(runs[0], tmp_path)
    (run.path / "logits-last.safetensors").unlink()
    with pytest.raises(UserError, match=r"logits-last.safetensors is missing; restore"):
        run.read_logits()
    (run.path / "scores.json").unlink()
    for read in (run.read_logits, run.read_scores):
        with pytest.raises(UserError, match=r"(last.safetensors|scores.json) is missing: the training has not ended"):
            read()


def test_line_without_an_epoch_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n{"loss": 2.0}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl is damaged: line 2"):
        Run(tmp_path, SMALL).read_metrics()


def test_file_without_read_permission_is_an_error(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    for name in ("open", "read_text"):
        monkeypatch.setattr(Path, name, refuse)
    for read in (
        lambda: Run(runs[0].path, SMALL).read_scores(),
        lambda: load_tensors(runs[0].path / "last.safetensors"),
    ):
        with pytest.raises(UserError, match=r"\(Permission denied\)"):
            read()


def test_checksums_are_those_of_the_files(runs: list[Run]) -> None:
    lines = (runs[0].path / checksums.NAME).read_text().splitlines()
    found = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = {path.name: path for path in runs[0].path.iterdir() if path.is_file() and path.name != checksums.NAME}
    assert found == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    assert {*FINISHED, "recipe.yaml", "scores.json", "dataset.json", "metrics.jsonl"} <= found.keys()


@pytest.mark.parametrize("name", [*FINISHED, *EDITED])
def test_one_changed_bit_is_detected(runs: list[Run], tmp_path: Path, name: str) -> None:
    run = copied(runs[0], tmp_path)
    path = run.path / name
    whole = path.read_bytes()
    changed = whole.replace(*EDITED[name], 1) if name in EDITED else whole[:-1] + bytes([whole[-1] ^ 1])
    assert changed != whole
    path.write_bytes(changed)
    with pytest.raises(UserError, match=rf"run/{name} is not as it was when it was saved") as error:
        read_all(run)
    assert "\n" not in str(error.value)
    again = name not in ("recipe.yaml", "metrics.jsonl")  # which no --resume writes again
    assert ("remove scores.json and train with --resume" in str(error.value)) == again
    (run.path / checksums.NAME).unlink()  # as earlier versions left it
    read_all(run)


def test_copy_of_some_files_is_verified(runs: list[Run], tmp_path: Path) -> None:
    """Files that were not copied are not missed."""
    for name in ("recipe.yaml", "scores.json", "logits-last.safetensors", checksums.NAME):
        shutil.copy(runs[0].path / name, tmp_path)
    score_runs([Run.open(tmp_path)], epochs=["last"])
    shutil.copy(runs[1].path / "logits-last.safetensors", tmp_path)
    with pytest.raises(UserError, match=r"logits-last.safetensors is not as it was"):
        score_runs([Run.open(tmp_path)], epochs=["last"])


def test_resume_writes_a_changed_file_again(runs: list[Run], tmp_path: Path) -> None:
    """Also in shards of another size: the old file is not read instead of them."""
    run = copied(runs[0], tmp_path)
    path = run.path / "last.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    (run.path / "scores.json").unlink()
    train(run.recipe, run.path, dataclasses.replace(QUIET, shard_mb=0.1), resume=True)
    assert not path.exists()
    assert len(list(run.path.glob("last-*.safetensors"))) > 1
    read_all(run)
    again, before = load_network(run).state_dict(), load_network(runs[0]).state_dict()
    assert all(torch.equal(again[name], before[name]) for name in before)
    shard = next(run.path.glob("last-00002*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(UserError, match=r"last-00002.* is not as it was"):
        load_network(run)
    with (run.path / "last.safetensors.index.json").open("a") as file:
        file.write("\n")
    with pytest.raises(UserError, match=r"last.safetensors.index.json is not as it was"):
        load_network(run)


def test_resume_writes_missing_files_again(runs: list[Run], tmp_path: Path) -> None:
    """Without scores.json, from the last checkpoint."""
    run = copied(runs[0], tmp_path)
    for name in ("last.safetensors", "logits-best.safetensors", "dataset.json", "scores.json"):
        (run.path / name).unlink()
    train(run.recipe, run.path, QUIET, resume=True)
    again, before = score_runs([run]), score_runs([runs[0]])
    assert again._replace(runs=[]) == before._replace(runs=[])
    assert (run.path / "last.safetensors").read_bytes() == (runs[0].path / "last.safetensors").read_bytes()


def test_finished_run_resumes_on_a_read_only_disk(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> None:
        raise UserError("read-only")

    monkeypatch.setattr("mixmo.engine.training.claim", refused)
    assert train(runs[0].recipe, runs[0].path, QUIET, resume=True).is_finished()
    with pytest.raises(UserError, match="read-only"):
        train(runs[0].recipe, runs[0].path, QUIET)


def test_finished_run_resumes_without_its_data(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another recipe is an error, also before the data are missed."""
    run, elsewhere = copied(runs[0], tmp_path), dataclasses.replace(QUIET, data=tmp_path)
    (run.path / checksums.NAME).unlink()
    recipe = run.recipe.replace(dataset="cifar100")
    run.write_recipe(recipe)
    assert train(recipe, run.path, elsewhere, resume=True).is_finished()
    assert capsys.readouterr().err == ""
    train(recipe, run.path, dataclasses.replace(elsewhere, quiet=False), resume=True)
    assert capsys.readouterr().err == f"{run.path} has ended; nothing is left to train\n"
    with pytest.raises(UserError, match=r"run is a run of another recipe \(seed 0 -> 1\)"):
        train(recipe.replace(seed=1), run.path, elsewhere, resume=True)


def test_finished_run_can_be_trained_again_from_the_start(runs: list[Run], tmp_path: Path) -> None:
    """Stopped on the way: the checksums of the earlier training no longer apply."""
    run = copied(runs[1], tmp_path)
    (run.path / "scores.json").unlink()
    shutil.rmtree(run.path / "checkpoints")
    train(run.recipe, run.path, QUIET, resume=True, until=1)
    assert (
        train(run.recipe, run.path, QUIET, resume=True).read_metrics()[-1]["test"] == runs[1].read_metrics()[-1]["test"]
    )


def test_lost_lines_of_metrics_give_a_warning(tmp_path: Path) -> None:
    train(SMALL, tmp_path / "run", QUIET, until=5)  # one epoch
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    with pytest.warns(UserWarning, match="has lost its lines of epoch 1"):
        run = train(SMALL, tmp_path / "run", QUIET, resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [line["epoch"] for line in run.read_metrics()] == [2]


def test_logits_of_networks_tested_on_different_data_are_an_error(runs: list[Run], tmp_path: Path) -> None:
    logits, labels = runs[0].read_logits()
    run = Run.create(tmp_path, runs[0].recipe.replace(networks=2))
    for other in (labels, labels.flip(0)):
        for folder, tested in zip(run.network_paths(), (labels, other), strict=True):
            folder.mkdir(exist_ok=True)
            save_tensors({"logits": logits, "labels": tested}, folder / "logits-last.safetensors")
        if other is labels:
            assert torch.equal(run.read_logits().logits, torch.cat((logits, logits)))
    with pytest.raises(UserError, match="different data"):
        run.read_logits()


def test_network_is_loaded_in_eval_mode(runs: list[Run]) -> None:
    assert not any(module.training for module in load_network(runs[0]).modules())


def test_run_given_twice_is_no_ensemble(runs: list[Run], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(runs[0].path)
    with pytest.raises(UserError, match="is given twice"):
        score_runs([runs[0], Run.open(tmp_path / "link")])


def test_weights_of_an_unknown_epoch_are_an_error(runs: list[Run]) -> None:
    with pytest.raises(UserError, match="unknown epoch 'middle'; there are: best, last"):
        load_network(runs[0], "middle")


def test_best_epoch_is_reported_of_one_run_alone(runs: list[Run]) -> None:
    """Those of an ensemble are of several epochs."""
    assert score_runs(runs[:1]).summary.best_epoch == runs[0].read_scores()["best_epoch"]
    assert score_runs(runs).summary.best_epoch is None
