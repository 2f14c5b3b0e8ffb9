"""A run directory whose files were damaged, or that cannot be made: one sentence, and nothing is lost."""

import errno
import json
import os
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mixmo import UserError
from mixmo.cli import main
from mixmo.engine import Runtime, seal, train
from mixmo.evaluation import load_network, score_runs
from mixmo.files import save_tensors, unwritten
from mixmo.recipes import named
from mixmo.runs import Run, environment

SMALL = named("digits/cut-mixmo").replace(epochs=2, width=1, batch_size=512)
QUIET = Runtime(device="cpu", quiet=True)
DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "a list": lambda path: path.write_text("[1, 2]\n"),
    "another dict": lambda path: path.write_text('{"a": 1}\n'),
    "null": lambda path: path.write_text("null\n"),
}
READERS = {
    "recipe.yaml": ["eval"],
    "dataset.json": ["eval", "--source", "weights"],
    "scores.json": ["eval"],
    "metrics.jsonl": ["analyse"],
    "logits-last.safetensors": ["eval"],
    "last.safetensors": ["analyse"],
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_gets_one_sentence_that_names_it(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, damage: str
) -> None:
    shutil.copytree(runs[0].path, tmp_path / "run")
    DAMAGE[damage](tmp_path / "run" / name)
    command, *options = READERS[name]
    assert main([command, str(tmp_path / "run"), *options]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    assert str(tmp_path / "run" / name) in said


def test_a_recipe_cut_behind_a_value(runs: list[Run], tmp_path: Path) -> None:
    """It reads as a shorter one: what it lost would be taken from the defaults."""
    whole = (runs[0].path / "recipe.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(whole[: whole.index("\nmembers:")])
    with pytest.raises(UserError, match=r"recipe.yaml cannot be read as a recipe \(it ends amid a line\)"):
        Run(tmp_path).recipe  # noqa: B018


def test_logits_of_another_kind(runs: list[Run], tmp_path: Path) -> None:
    shutil.copytree(runs[0].path, tmp_path / "run")
    save_tensors({"logits": torch.zeros(2, 5), "labels": torch.zeros(5)}, tmp_path / "run" / "logits-last.safetensors")
    with pytest.raises(UserError, match=r"holds no logits \(heads, N, K\)"):
        Run(tmp_path / "run").logits()


def test_the_remedy_for_a_lost_file_works(runs: list[Run], tmp_path: Path) -> None:
    """Without scores.json, --resume writes everything again from the last checkpoint."""
    run = Run(tmp_path / "run")
    shutil.copytree(runs[0].path, run.path)
    for name in ("last.safetensors", "logits-best.safetensors", "dataset.json", "scores.json"):
        (run.path / name).unlink()
    train(run.recipe, run.path, QUIET, resume=True)
    again, before = score_runs([run]), score_runs([runs[0]])
    assert {**again, "runs": None} == {**before, "runs": None}
    assert (run.path / "last.safetensors").read_bytes() == (runs[0].path / "last.safetensors").read_bytes()


def test_a_run_given_twice_is_no_ensemble(runs: list[Run], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(runs[0].path)
    with pytest.raises(UserError, match="is given twice"):
        score_runs([runs[0], Run(tmp_path / "link")])


@pytest.mark.parametrize("link", [False, True])
def test_a_folder_that_was_there_stays(tmp_path: Path, link: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails before the first step leaves the user's empty folder, or link to one, as it was."""
    (tmp_path / "folder").mkdir()
    out = tmp_path / "folder"
    if link:
        out = tmp_path / "link"
        out.symlink_to(tmp_path / "folder")
    monkeypatch.setattr("mixmo.engine.training.Trainer", broken)
    with pytest.raises(RuntimeError, match="broken"):
        train(SMALL, out, QUIET)
    assert out.is_dir()
    assert out.is_symlink() == link
    assert not list(out.iterdir())
    with pytest.raises(RuntimeError, match="broken"):
        train(SMALL, tmp_path / "new", QUIET)
    assert not (tmp_path / "new").exists()


def broken(*_: object) -> None:
    raise RuntimeError("broken")


def test_what_a_process_killed_at_once_leaves_does_not_count(tmp_path: Path) -> None:
    (tmp_path / ".recipe.yaml.123.tmp").write_text("half")
    run = Run.create(tmp_path, SMALL)
    with run.claimed():
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "recipe.yaml"]


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with Run.create(tmp_path, SMALL).claimed():
        pass


@pytest.mark.parametrize("out", ["file/run", "loop/run"])
def test_an_out_that_cannot_be_made(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UserError, match=r"cannot be made .* give another --out"):
        Run.create(tmp_path / out, SMALL)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EACCES, "make its folder writable"),
        (errno.ENOENT, "put back its folder, which was removed or moved"),
        (errno.EIO, "check that disk"),
    ],
)
def test_the_remedy_is_that_of_the_fault(tmp_path: Path, number: int, remedy: str) -> None:
    said = str(unwritten(tmp_path / "file", OSError(number, os.strerror(number))))
    assert said.endswith(
        f"({os.strerror(number)}); what was there before is intact: {remedy}, then continue with --resume"
    )


def test_tensors_in_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"x.safetensors could not be written \(No such file or directory\).* which was removed"
    ):
        save_tensors({"a": torch.zeros(2)}, tmp_path / "gone" / "x.safetensors")


def test_a_lock_that_cannot_be_made(tmp_path: Path) -> None:
    run = Run.create(tmp_path, SMALL)
    (tmp_path / ".lock").mkdir()
    with pytest.raises(UserError, match=r"\.lock could not be written \(Is a directory\)"), run.claimed():
        pass


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not there")
def test_the_commit_of_a_project_around_it_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the package is installed into a `.venv` inside a user's repository."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "runs.py").touch()
    for words in (["init", "-q"], ["add", "runs.py"], ["commit", "-qm", "theirs"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "site-packages").mkdir()
    found = []
    for file in (tmp_path / "runs.py", tmp_path / "site-packages" / "runs.py"):
        monkeypatch.setattr("mixmo.runs.__file__", str(file))
        found.append(environment(torch.device("cpu"))["commit"])
    assert len(found[0]) == 40
    assert found[1] is None


def test_no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert environment(torch.device("cpu"))["commit"] is None


def test_lost_epochs_are_told(tmp_path: Path) -> None:
    train(SMALL, tmp_path / "run", QUIET, until=5)  # one epoch
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    with pytest.warns(UserWarning, match="has lost the epochs 1 to 1"):
        run = train(SMALL, tmp_path / "run", QUIET, resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [line["epoch"] for line in run.metrics()] == [2]


def test_a_checkpoint_beyond_the_end(tmp_path: Path) -> None:
    run = train(SMALL, tmp_path / "run", QUIET, until=2)
    folder = run.path / "checkpoints" / "00000002"
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "step": 999}))
    (folder / seal.NAME).unlink()  # as earlier versions left it
    with pytest.raises(UserError, match=r"00000002 cannot be used: .*it is of step 999"):
        train(SMALL, run.path, QUIET, resume=True)
    folder.rename(folder.with_name("00000999"))
    with pytest.raises(UserError, match="is of step 999, but this training has"):
        train(SMALL, run.path, QUIET, resume=True)


def test_a_training_that_has_not_ended_says_so(runs: list[Run], tmp_path: Path):
    run = Run(shutil.copytree(runs[0].path, tmp_path / "run"))
    for name in ("logits-last.safetensors", "last.safetensors"):
        (run.path / name).unlink()
    with pytest.raises(UserError, match=r"logits-last.safetensors is missing; .* remove scores.json there"):
        run.logits()
    (run.path / "scores.json").unlink()
    for ask in (run.logits, lambda: load_network(run)):
        with pytest.raises(UserError, match=r"last.safetensors is missing: the training has not ended; continue it"):
            ask()


def test_weights_of_no_epoch(runs: list[Run]):
    with pytest.raises(UserError, match="unknown epoch 'middle'; There are: best, last"):
        load_network(runs[0], "middle")
