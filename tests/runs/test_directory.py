"""A run directory whose files were damaged, or that cannot be made: one sentence, and nothing is lost."""

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from PIL import Image

from mixmo import UserError
from mixmo.cli.app import main
from mixmo.engine import Runtime, train
from mixmo.evaluation.run_scores import load_test, score_runs, stack
from mixmo.metrics.logits import LabelledLogits
from mixmo.recipes import named
from mixmo.runs.directory import WHICH, Run, environment
from mixmo.runs.network import load_network
from mixmo.storage import checksums
from mixmo.storage.files import drafts, load_tensors, replacing, save_tensors, unwritten

SMALL = named("digits/cut-mixmo").replace(epochs=2, width=1, batch_size=512)
QUIET = Runtime(device="cpu", quiet=True)
DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "a list": lambda path: path.write_text("[1, 2]\n"),
    "another dict": lambda path: path.write_text('{"a": 1}\n'),
    "null": lambda path: path.write_text("null\n"),
    "deep": lambda path: path.write_text("[" * 9999 + "\n"),
    "a long number": lambda path: path.write_text("9" * 9999 + "\n"),
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


def test_a_recipe_with_a_part_of_ones_own(runs: list[Run], tmp_path: Path) -> None:
    whole = (runs[0].path / "recipe.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(whole.replace("model: wrn\n", "model: mine\n"))
    with pytest.raises(UserError, match=r"unknown model family 'mine'.*add the parts of your own that it names first"):
        Run(tmp_path).recipe  # noqa: B018
    (tmp_path / "recipe.yaml").write_text(f"{whole}lrr: 0.1\n")  # of another version, say, which no file of yours adds
    with pytest.raises(UserError, match=r"unknown field 'lrr'.*\); restore it or train again$"):
        Run(tmp_path).recipe  # noqa: B018


def test_logits_of_another_kind(runs: list[Run], tmp_path: Path) -> None:
    shutil.copytree(runs[0].path, tmp_path / "run")
    save_tensors({"logits": torch.zeros(2, 5), "labels": torch.zeros(5)}, tmp_path / "run" / "logits-last.safetensors")
    (tmp_path / "run" / checksums.NAME).unlink()
    with pytest.raises(UserError, match=r"holds no logits \(heads, N, K\)"):
        Run(tmp_path / "run").logits()


FINISHED = ("last.safetensors", "best.safetensors", "logits-last.safetensors", "logits-best.safetensors")


def read_all(run: Run) -> None:
    """Whatever the commands read of a finished run."""
    _ = run.recipe, run.metrics(), [run.json(name) for name in ("scores.json", "dataset.json", "environment.json")]
    for which in WHICH:
        load_network(run, which)
        run.logits(which)


def test_checksums_are_those_of_the_files(runs: list[Run]) -> None:
    lines = (runs[0].path / checksums.NAME).read_text().splitlines()
    found = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = {path.name: path for path in runs[0].path.iterdir() if path.is_file() and path.name != checksums.NAME}
    assert found == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    assert {*FINISHED, "recipe.yaml", "scores.json", "dataset.json", "metrics.jsonl"} <= found.keys()


EDITED = {  # another number, in a file that reads as well as before
    "recipe.yaml": (b"seed: 0", b"seed: 1"),
    "scores.json": (b'"parameters": ', b'"parameters": 1'),
    "dataset.json": (b'"mean": [\n    0.', b'"mean": [\n    1.'),
    "environment.json": (b'"threads": ', b'"threads": 1'),
    "metrics.jsonl": (b'"step": ', b'"step": 1'),
}


@pytest.mark.parametrize("name", [*FINISHED, *EDITED])
def test_one_changed_number_is_noticed(runs: list[Run], tmp_path: Path, name: str) -> None:
    run = Run(shutil.copytree(runs[0].path, tmp_path / "run"))
    path = run.path / name
    whole = path.read_bytes()
    changed = whole.replace(*EDITED[name], 1) if name in EDITED else whole[:-1] + bytes([whole[-1] ^ 1])
    assert changed != whole
    path.write_bytes(changed)
    with pytest.raises(UserError, match=rf"run/{name} is not as it was when it was saved.*; bring it back") as error:
        read_all(run)
    assert "\n" not in str(error.value)
    again = name not in ("recipe.yaml", "metrics.jsonl")  # which no --resume writes again
    assert ("remove scores.json and train with --resume" in str(error.value)) == again
    (run.path / checksums.NAME).unlink()  # as earlier versions left it
    read_all(run)


def test_a_run_copied_in_part(runs: list[Run], tmp_path: Path) -> None:
    """What was not copied is not missed; what was is verified."""
    for name in ("recipe.yaml", "scores.json", "logits-last.safetensors", checksums.NAME):
        shutil.copy(runs[0].path / name, tmp_path)
    score_runs([Run(tmp_path)], epochs=["last"])
    shutil.copy(runs[1].path / "logits-last.safetensors", tmp_path)
    with pytest.raises(UserError, match=r"logits-last.safetensors is not as it was"):
        score_runs([Run(tmp_path)], epochs=["last"])


def test_the_remedy_for_a_changed_file_works(runs: list[Run], tmp_path: Path) -> None:
    """Also where it asks for files of another size: the old one is not read instead of them."""
    run = Run(shutil.copytree(runs[0].path, tmp_path / "run"))
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


def test_a_finished_run_is_resumed_where_nobody_can_write(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Run) -> None:
        raise UserError("read-only")

    monkeypatch.setattr(Run, "claimed", refused)
    assert train(runs[0].recipe, runs[0].path, QUIET, resume=True).finished
    with pytest.raises(UserError, match="read-only"):
        train(runs[0].recipe, runs[0].path, QUIET)


def test_a_finished_run_is_resumed_without_its_data(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of another recipe it is refused first, too."""
    run, elsewhere = Run(shutil.copytree(runs[0].path, tmp_path / "run")), dataclasses.replace(QUIET, data=tmp_path)
    (run.path / checksums.NAME).unlink()
    recipe = run.recipe.replace(dataset="cifar100")
    run.write_recipe(recipe)
    assert train(recipe, run.path, elsewhere, resume=True).finished
    assert capsys.readouterr().err == ""
    train(recipe, run.path, dataclasses.replace(elsewhere, quiet=False), resume=True)
    assert capsys.readouterr().err == f"{run.path} has ended; nothing is left to train\n"
    with pytest.raises(UserError, match=r"run is a run of another recipe \(seed 0 -> 1\)"):
        train(recipe.replace(seed=1), run.path, elsewhere, resume=True)


def test_a_finished_run_is_trained_from_the_start_again(runs: list[Run], tmp_path: Path) -> None:
    """And stopped on the way: the checksums of what it was before do not hold any more."""
    run = Run(shutil.copytree(runs[1].path, tmp_path / "run"))
    (run.path / "scores.json").unlink()
    shutil.rmtree(run.path / "checkpoints")
    train(run.recipe, run.path, QUIET, resume=True, until=1)
    assert train(run.recipe, run.path, QUIET, resume=True).metrics()[-1]["test"] == runs[1].metrics()[-1]["test"]


def test_as_many_files_as_were_written_last(tmp_path: Path) -> None:
    path, tensors = tmp_path / "x.safetensors", {str(i): torch.full((1000,), float(i)) for i in range(4)}
    (tmp_path / "x-mine.safetensors").touch()
    for shard_mb, count in ((None, 1), (0.005, 5), (0.009, 3), (None, 1)):
        save_tensors(tensors, path, shard_mb)
        assert len(list(tmp_path.iterdir())) == 1 + count
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in load_tensors(path).items())


ELSEWHERE = ["../x.safetensors", "/x.safetensors", "", "..", "recipe.yaml", 5, "x\0.txt"]


@pytest.mark.parametrize(
    "text",
    [*(json.dumps({"weight_map": {"w": name}}) for name in ELSEWHERE), "{}", "[]", '{"weight_map": []}', "[" * 10**5],
)
def test_an_index_that_leads_elsewhere_or_nowhere(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.safetensors.index.json").write_text(text)
    with pytest.raises(UserError, match=r"a.safetensors.index.json is damaged \("):
        load_tensors(tmp_path / "a.safetensors")


def test_an_index_that_names_what_is_not_there(tmp_path: Path) -> None:
    for name in ("a.safetensors", "gone.safetensors"):  # the first is what the index stands for
        (tmp_path / "a.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
        with pytest.raises(UserError, match=f"{name} is missing"):
            load_tensors(tmp_path / "a.safetensors")
    safetensors.torch.save_file({"w": torch.zeros(2)}, tmp_path / "a.safetensors")
    assert load_tensors(tmp_path / "a.safetensors").keys() == {"w"}  # needs no index


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_weights_are_as_readable_as_other_files(tmp_path: Path) -> None:
    save_tensors({"a": torch.zeros(2)}, tmp_path / "a.safetensors")
    (tmp_path / "b").touch()
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_file_that_may_not_be_read(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is missing or damaged, so nothing must be removed."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    for name in ("open", "read_text"):
        monkeypatch.setattr(Path, name, refuse)
    for read in (lambda: runs[0].json("scores.json"), lambda: load_tensors(runs[0].path / "last.safetensors")):
        with pytest.raises(UserError, match=r"cannot be read \(Permission denied\); make it readable"):
            read()


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("scores.json", {"last": {}}, "it has no last.members as a list"),
        ("scores.json", {"last": {"members": [], "ensemble": [1]}}, "it has no last.ensemble.top1 as a float"),
        ("dataset.json", {"size": []}, "its size is not channels, height and width"),
    ],
)
def test_json_of_other_fields(
    runs: list[Run], tmp_path: Path, name: str, fields: dict[str, object], message: str
) -> None:
    """Of a run of an earlier version, which has no checksums."""
    (tmp_path / name).write_text(json.dumps(runs[0].json(name) | fields))
    with pytest.raises(UserError, match=f"{name} is damaged: {message}"):
        Run(tmp_path).json(name)


def test_logits_of_whole_numbers(runs: list[Run], tmp_path: Path) -> None:
    logits, labels = runs[0].logits()
    run = Run.create(tmp_path, runs[0].recipe)
    save_tensors({"logits": logits.long(), "labels": labels}, tmp_path / "logits-last.safetensors")
    with pytest.raises(UserError, match=r"holds logits of type torch.int64"):
        run.logits()


def test_logits_of_networks_that_were_tested_on_different_data(runs: list[Run], tmp_path: Path) -> None:
    logits, labels = runs[0].logits()
    run = Run.create(tmp_path, runs[0].recipe.replace(networks=2))
    for other in (labels, labels.flip(0)):
        for folder, tested in zip(run.networks(), (labels, other), strict=True):
            folder.mkdir(exist_ok=True)
            save_tensors({"logits": logits, "labels": tested}, folder / "logits-last.safetensors")
        if other is labels:
            assert torch.equal(run.logits()[0], torch.cat((logits, logits)))
    with pytest.raises(UserError, match=r"were tested on different data; remove scores.json in each"):
        run.logits()


def test_the_remedy_for_a_lost_file_works(runs: list[Run], tmp_path: Path) -> None:
    """Without scores.json, --resume writes everything again from the last checkpoint."""
    run = Run(tmp_path / "run")
    shutil.copytree(runs[0].path, run.path)
    for name in ("last.safetensors", "logits-best.safetensors", "dataset.json", "scores.json"):
        (run.path / name).unlink()
    train(run.recipe, run.path, QUIET, resume=True)
    again, before = score_runs([run]), score_runs([runs[0]])
    assert again._replace(runs=[]) == before._replace(runs=[])
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


def test_a_full_disk_at_the_very_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"recipe.yaml could not be written \(No space left on device\)"):
        train(SMALL, tmp_path / "new", QUIET)
    assert not list(tmp_path.iterdir())


def test_what_was_trained_stays_also_without_its_recipe(tmp_path: Path) -> None:
    class Remover:
        def log_metrics(self, *_: object) -> None:
            (tmp_path / "run" / "recipe.yaml").unlink()
            raise KeyboardInterrupt

        def log_hyperparams(self, *_: object) -> None: ...
        def finalize(self, *_: object) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        train(SMALL, tmp_path / "run", QUIET, loggers=[Remover()])
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_size > 0


def test_what_a_process_killed_at_once_leaves_does_not_count(tmp_path: Path) -> None:
    for name in ("notes.tmp", ".hidden"):
        (tmp_path / name).touch()
        with pytest.raises(UserError, match="exists already and is no run directory"):
            Run.create(tmp_path, SMALL)
        (tmp_path / name).unlink()
    (tmp_path / ".recipe.yaml.123.tmp").write_text("half")
    (tmp_path / ".lock").touch()
    run = Run.create(tmp_path, SMALL)
    with run.claimed():
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "recipe.yaml"]


def test_one_claim_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    run, lock = Run.create(tmp_path / "run", SMALL), tmp_path / "run" / ".lock"
    with run.claimed():
        for _ in range(2):  # who is refused does not take the lock away from its holder
            with pytest.raises(UserError, match="another process is training"), run.claimed():
                pass
        assert lock.exists()
    assert not lock.exists()
    # Another process ends, and a third one begins or not, between our opening the file and locking it.
    for meanwhile in (lambda *_: lock.unlink(), lambda *_: (lock.unlink(), lock.touch())):
        monkeypatch.setattr(fcntl, "flock", meanwhile)
        with pytest.raises(UserError, match="another process is training"), run.claimed():
            pass
    assert lock.exists()


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
        f"({os.strerror(number)}); what was there before is intact: {remedy}, then give the command again, "
        "a training with --resume"
    )


def test_two_that_write_one_file(tmp_path: Path) -> None:
    """Such as the same table, from two containers, where both may be process 1."""
    with replacing(tmp_path / "table") as one:
        one.write_text("one")
        with replacing(tmp_path / "table") as two:
            two.write_text("two")
        assert (tmp_path / "table").read_text() == "two"
    assert (tmp_path / "table").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_tensors_in_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"x.safetensors could not be written \(No such file or directory\).* which was removed"
    ):
        save_tensors({"a": torch.zeros(2)}, tmp_path / "gone" / "x.safetensors")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("I/O error: No space left on device (os error 28)", r"\(No space left on device\).*: free some space,"),
        ("tensors share memory", r"\(tensors share memory\).*: check that disk,"),
    ],
)
def test_what_safetensors_says_of_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, said: str
) -> None:
    def fail(*_: object) -> None:
        raise safetensors.SafetensorError(fault)

    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    with pytest.raises(UserError, match=rf"x.safetensors could not be written {said}"):
        save_tensors({"a": torch.zeros(2)}, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (UserError("another sentence"), "^another sentence$"),
        (OSError(errno.ENOSPC, "No space left"), r"a cannot be written \(No space left\); make room"),
        (unwritten(Path("b"), OSError(errno.EROFS, "Read-only")), "^b could not be written"),
    ],
)
def test_what_fails_among_drafts(tmp_path: Path, fault: Exception, said: str) -> None:
    with pytest.raises(UserError, match=said), drafts(tmp_path / "a"):
        raise fault
    assert not list(tmp_path.iterdir())


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
        monkeypatch.setattr("mixmo.runs.directory.__file__", str(file))
        found.append(environment(torch.device("cpu"))["commit"])
    assert len(found[0]) == 40
    assert found[1] is None


def test_no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert environment(torch.device("cpu"))["commit"] is None


def test_a_training_that_has_not_ended_says_so(runs: list[Run], tmp_path: Path):
    run = Run(shutil.copytree(runs[0].path, tmp_path / "run"))
    (run.path / "logits-last.safetensors").unlink()
    with pytest.raises(UserError, match=r"logits-last.safetensors is missing; .* remove scores.json there"):
        run.logits()
    (run.path / "scores.json").unlink()
    for ask in (run.logits, lambda: run.json("scores.json")):
        with pytest.raises(UserError, match=r"(last.safetensors|scores.json) is missing: the training has not ended"):
            ask()


def test_a_line_that_is_no_epoch(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n{"loss": 2.0}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl is damaged \(line 2 is no epoch\)"):
        Run(tmp_path).metrics()


def test_runs_over_different_test_sets_are_no_ensemble(runs: list[Run]) -> None:
    logits, labels, paths = torch.zeros(2, 4, 3), torch.tensor([0, 1, 2, 0]), [run.path for run in runs]
    assert stack([LabelledLogits(logits, labels)] * 2, paths).logits.shape == (4, 4, 3)
    for other in ((logits, labels.flip(0).roll(1)), (torch.zeros(2, 4, 5), labels), (logits[:, :3], labels[:3])):
        with pytest.raises(UserError, match="was tested on other data than"):
            stack([LabelledLogits(logits, labels), LabelledLogits(*other)], paths)


def test_weights_of_no_epoch(runs: list[Run]):
    with pytest.raises(UserError, match="unknown epoch 'middle'; there are: best, last"):
        load_network(runs[0], "middle")


def test_only_the_test_images_of_a_run_are_read(runs: list[Run], tmp_path: Path) -> None:
    """Of a large folder, say, the train images take hours."""
    image = Image.new("L", (8, 8))
    for label in runs[0].json("dataset.json")["classes"]:
        for part in ("train", "test"):
            (tmp_path / "images" / part / label).mkdir(parents=True)
            image.save(tmp_path / "images" / part / label / "1.png")
    run = Run(shutil.copytree(runs[0].path, tmp_path / "run"))
    run.write_recipe(run.recipe.replace(dataset=f"folder:{tmp_path}/images@8"))
    (run.path / "SHA256SUMS").unlink()  # takes the recipe as it is now
    assert len(load_test(run, None, torch.device("cpu")).test.labels) == 10
    assert [path.name.rpartition("-")[0] for path in (tmp_path / "images" / ".mixmo-cache").iterdir()] == ["test-8"]


def test_the_best_epoch_is_told_of_one_run_alone(runs: list[Run]) -> None:
    """Those of an ensemble are of several epochs."""
    assert score_runs(runs[:1]).summary.best_epoch == runs[0].json("scores.json")["best_epoch"]
    assert score_runs(runs).summary.best_epoch is None


def test_a_network_is_loaded_in_eval_mode(runs: list[Run]) -> None:
    assert not any(module.training for module in load_network(runs[0]).modules())
