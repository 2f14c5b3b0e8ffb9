"""Commands on a run that has not ended use its newest weights, name their step, and change nothing."""

import dataclasses
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mixmo
from helpers import noise
from mixmo import UserError
from mixmo.cli.app import main
from mixmo.cli.streams import as_sentence
from mixmo.engine import Runtime, train
from mixmo.evaluation.analysis import analyse
from mixmo.evaluation.robustness import score_ood
from mixmo.evaluation.run_scores import score_runs
from mixmo.recipes import named
from mixmo.reproduce.store import Store
from mixmo.runs import checkpoint
from mixmo.runs.directory import Run
from mixmo.runs.network import Unfinished, load_network

RECIPE = named("digits/cut-mixmo").replace(
    epochs=3, width=1, batch_size=256, repetition=1, average=2.0
)  # 5 steps an epoch
QUIET = Runtime(device="cpu", quiet=True)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Within an epoch, with averaged weights in shards."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    steps = train(RECIPE, path, dataclasses.replace(QUIET, shard_mb=0.1), until=13)
    assert (path / "checkpoints" / "00000013" / "average.safetensors.index.json").is_file()
    return steps


def content(run: Run) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(run.path.rglob("*")) if path.is_file()}


def test_commands_read_the_newest_weights_and_name_their_step(stopped: Run, tmp_path: Path) -> None:
    before, run = content(stopped), str(stopped.path)
    image = Path(__file__).parents[1] / "samples" / "sea.png"
    expected = f"the training of {run} has not ended; its last weights so far are those of step 13, after epoch 2 of 3"
    for command in (
        ["eval", run, "--which", "last"],
        ["eval", run, "--which", "last", "--json"],
        ["eval", run, "--on", "digits"],
        ["eval", run, "--multiplex"],
        ["predict", run, str(image)],
        ["analyse", run, "--device", "cpu"],
        ["export", run, "--to", str(tmp_path / "a.pt2")],
        ["plot", "filters", run, "--out", str(tmp_path / "a.png")],
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            assert main(command) == 0
        assert [str(warning.message) for warning in caught].count(expected) == 1, command
    assert content(stopped) == before
    assert Store(stopped.path.parent).finished() == []


def test_scores_equal_those_of_the_scored_epochs(tmp_path: Path) -> None:
    """Of the averaged weights; and the run resumes to the same result as one without interruption."""
    run = train(RECIPE, tmp_path / "run", QUIET, until=10)
    lines = run.read_metrics()
    with pytest.warns(Unfinished):
        scores = score_runs([run])
    top1 = [line["test"]["ensemble"]["top1"] for line in lines]
    assert len(set(top1)) > 1
    assert scores.reports["last"].ensemble.nll == pytest.approx(lines[-1]["test"]["ensemble"]["nll"], rel=1e-5)
    assert scores.reports["best"].ensemble.nll == pytest.approx(
        lines[top1.index(max(top1))]["test"]["ensemble"]["nll"], rel=1e-5
    )
    with pytest.warns(Unfinished, match="its best weights so far are those of step"):
        about = mixmo.load(run.path, "best").about
    assert about is not None
    assert about.scores["top1"] == max(top1)
    ended = train(RECIPE, run.path, QUIET, resume=True)
    straight = train(RECIPE, tmp_path / "straight", QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        there, here = load_network(straight), load_network(ended)
    assert all(torch.equal(there.state_dict()[name], tensor) for name, tensor in here.state_dict().items())
    assert score_runs([ended])._replace(runs=[]) == score_runs([straight])._replace(runs=[])
    assert scores.summary == score_runs([ended]).summary._replace(best_epoch=None)


def test_scores_without_averaged_weights_equal_those_of_the_epoch(tmp_path: Path) -> None:
    run = train(RECIPE.replace(average=0.0), tmp_path / "run", QUIET, until=5)
    with pytest.warns(Unfinished):
        scores = score_runs([run], epochs=["last"])
    assert scores.reports["last"].ensemble.nll == pytest.approx(
        run.read_metrics()[-1]["test"]["ensemble"]["nll"], rel=1e-5
    )


def renew(checkpoint: Path) -> None:
    """A training has gone on by a step."""
    checkpoint.rename(newer := checkpoint.with_name("00000014"))
    state = newer / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"step": 14}))
    (newer / "SHA256SUMS").unlink()


def test_a_checkpoint_replaced_while_it_is_read_is_read_again(
    stopped: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.open(shutil.copytree(stopped.path, tmp_path / "run"))
    fill, reads = checkpoint.load_weights, 0

    def replaced(*given: Any) -> None:
        nonlocal reads
        reads += 1
        if reads == 1:
            renew(run.path / "checkpoints" / "00000013")
        fill(*given)

    monkeypatch.setattr(checkpoint, "load_weights", replaced)
    with pytest.warns(Unfinished, match="those of step 14, "):
        load_network(run)
    assert reads == 2


def test_a_state_replaced_while_it_is_read_is_read_again(
    stopped: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, read = Run.open(shutil.copytree(stopped.path, tmp_path / "run")), checkpoint.read_state

    def replaced(path: Path) -> checkpoint.State:
        if path.name == "00000013":
            renew(path)
        return read(path)

    monkeypatch.setattr(checkpoint, "read_state", replaced)
    assert len(run.read_metrics()) == 2


@pytest.mark.parametrize("until", [7, None])
def test_scores_are_of_the_weights_read_first_while_a_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: int | None
) -> None:
    recipe, fill = RECIPE.replace(average=0.0), checkpoint.Checkpoints.load_weights
    run = train(recipe, tmp_path / "run", QUIET, until=5)
    grey = noise(tmp_path / "grey", {"train": 1, "test": 1}, "abc", (8, 8))

    def fill_and_go_on(self: checkpoint.Checkpoints, *given: Any, **options: Any) -> int:
        step = fill(self, *given, **options)
        train(recipe, self.folder.parent, QUIET, resume=True, until=until)
        return step

    def filters(run: Run) -> object:
        found = analyse([run]).runs[0]
        return found.top1, found.encoders

    def ood_detection(run: Run) -> object:
        return score_ood([run.path], f"folder:{grey}@8", "last", torch.device("cpu")).detectors

    for look in (filters, ood_detection):
        with pytest.warns(Unfinished, match="those of step 5, "):
            expected = look(run)
        moving = Run.open(shutil.copytree(run.path, tmp_path / look.__name__))
        with monkeypatch.context() as patched:
            patched.setattr(checkpoint.Checkpoints, "load_weights", fill_and_go_on)
            with pytest.warns(Unfinished, match="those of step 5, "):
                assert look(moving) == expected


@pytest.mark.parametrize("kept", [False, True])
def test_a_checkpoint_replaced_while_they_are_listed_is_found(stopped: Run, tmp_path: Path, kept: bool) -> None:
    """Also if an older one is kept: that is not the newest."""

    class Replaced(checkpoint.Checkpoints):
        def all(self) -> list[Path]:
            listed = super().all()
            if (self.folder / "00000013").exists():
                (self.folder / "00000013").rename(self.folder / "00000014")
            return listed

    run = Run.open(shutil.copytree(stopped.path, tmp_path / "run"))
    if kept:
        shutil.copytree(run.path / "checkpoints" / "00000013", run.path / "checkpoints" / "00000010")
    assert Replaced(run.path / "checkpoints").latest() == run.path / "checkpoints" / "00000014"


def test_last_weights_are_scored_before_the_first_scored_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both epochs are the default, and there is no best one yet."""
    fresh = train(RECIPE, tmp_path / "fresh", QUIET, until=2)
    with pytest.warns(Unfinished):
        expected = score_runs([fresh], epochs=["last"]).to_dict()
    assert "last" in expected
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(["eval", str(fresh.path), "--json", "--device", "cpu"]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(expected))
        assert main(["eval", str(fresh.path), "--device", "cpu"]) == 0
    assert as_sentence("it has not ended", Unfinished, "contextlib.py", 81) == "mixmo: it has not ended\n"
    assert f"{100 * expected['last']['ensemble']['top1']:.2f}" in capsys.readouterr().out


def test_missing_files_of_an_unfinished_run_raise_an_error(
    stopped: Run, tmp_path: Path, said: Callable[..., str]
) -> None:
    fresh = train(RECIPE, tmp_path / "fresh", QUIET, until=2)
    assert "no best weights yet" in said("eval", fresh.path, "--which", "best")
    shutil.rmtree(fresh.path / "checkpoints")
    assert "no checkpoint yet" in said("eval", fresh.path)
    (fresh.path / "dataset.json").unlink()
    assert "dataset.json is missing" in said("eval", fresh.path)
    several = Run.create(tmp_path / "several", RECIPE.replace(networks=2))
    shutil.copytree(stopped.path, several.path / "0")
    not_begun = "several/1 is not a run directory"
    for command in (["eval"], ["analyse"], ["analyse", "--csv"], ["plot", "filters", "--out", tmp_path / "a.png"]):
        assert not_begun in said(*command, several.path)
    with pytest.raises(UserError, match=not_begun):
        score_runs([several])


def test_the_warning_names_the_epoch_where_not_every_one_is_scored(tmp_path: Path) -> None:
    recipe, seldom = RECIPE.replace(epochs=4), dataclasses.replace(QUIET, score_every=2)
    for until, when in ((7, "step 7, before any epoch was scored"), (17, "step 17, after epoch 3 of 4")):
        run = train(recipe, tmp_path / "run", seldom, until=until, resume=True)
        with pytest.warns(Unfinished, match=when):
            load_network(run)


def test_a_path_may_begin_with_the_home_folder(stopped: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(stopped.path.parent))
    with pytest.warns(Unfinished):
        assert mixmo.load("~/run").members == RECIPE.members


def test_a_damaged_checkpoint_raises_an_error(stopped: Run, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(stopped.path, tmp_path / "run"))
    best = next((run.path / "checkpoints").glob("best-*-00001-of-*"))
    data = bytearray(best.read_bytes())
    data[-1] ^= 1
    best.write_bytes(data)
    with pytest.raises(UserError, match="00000013"):
        load_network(run, "best")


def test_a_changed_digit_of_the_log_raises_an_error(stopped: Run, tmp_path: Path, said: Callable[..., str]) -> None:
    run = Run.open(shutil.copytree(stopped.path, tmp_path / "run"))
    log, picture = run.path / "metrics.jsonl", tmp_path / "a.png"
    one, two = log.read_text().splitlines(keepends=True)
    top1 = json.loads(two)["test"]["ensemble"]["top1"]
    log.write_text(one + two.replace(f'"top1": {top1}', f'"top1": {top1 + 0.1}'))
    for command in (["analyse"], ["analyse", "--csv"], ["plot", "dynamics", "--out", picture], ["eval"]):
        assert "metrics.jsonl" in said(*command, run.path)
    assert not picture.exists()
    log.write_text(one)
    assert main(["analyse", "--csv", str(run.path)]) == 0
    log.write_text(one + two + '{"epoch": 3, "step": 15}\n')  # after the checkpoint: there is nothing to compare with
    assert len(run.read_metrics()) == 3


def test_a_changed_state_raises_an_error(stopped: Run, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(stopped.path, tmp_path / "run"))
    state = run.path / "checkpoints" / "00000013" / "state.json"
    logged = json.loads(state.read_text())["logged"]
    state.write_text(state.read_text().replace(logged["1"], logged["2"]))
    with pytest.raises(UserError, match=r"state\.json"):
        run.read_metrics()


def test_a_damaged_line_of_the_log_leaves_the_weights_usable(stopped: Run, tmp_path: Path) -> None:
    """With a checkpoint of an earlier version, which has no checksums of the lines."""
    run = Run.open(shutil.copytree(stopped.path, tmp_path / "run"))
    log, checkpoint = run.path / "metrics.jsonl", run.path / "checkpoints" / "00000013"
    state = json.loads((checkpoint / "state.json").read_text())
    (checkpoint / "state.json").write_text(json.dumps(state | {"logged": None}))
    (checkpoint / "SHA256SUMS").unlink()
    for name in ("step", "test", "ensemble"):
        log.write_text((stopped.path / "metrics.jsonl").read_text().replace(f'"{name}"', '"name"'))
        for which in ("last", "best"):
            with pytest.warns(Unfinished, match="those of step"):
                about = mixmo.load(run.path, which).about
            assert about is not None
            assert about.scores == {}
