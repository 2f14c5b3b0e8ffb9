"""A whole table at smoke scale through the command line: made, shared, resumed, interrupted, filled from elsewhere."""

import csv
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mixmo.cli.app import main
from mixmo.engine import Runtime, train
from mixmo.evaluation.robustness import BriefScores, CorruptionScores
from mixmo.evaluation.run_scores import score_runs
from mixmo.plots.masks import gallery, two_images
from mixmo.recipes.schema import Recipe
from mixmo.reproduce import corruption, paper
from mixmo.reproduce.cost import Speed, h200
from mixmo.reproduce.execute import Remaining
from mixmo.reproduce.output import some_images
from mixmo.reproduce.plan import expand, needed
from mixmo.reproduce.store import Store, run_name
from mixmo.runs.directory import Run
from mixmo.runs.lock import claim
from mixmo.runs.network import load_network

SETTINGS = {"batch_size": 256, "epochs": 1}
SET = ["--set", "batch_size=256", "--set", "epochs=1"]
ON_CPU = ["--device", "cpu", "--quiet", "true"]
SLUG = "smoke+batch_size=256+epochs=1"
SMOKE = ["--scale", "smoke", *SET, *ON_CPU]


def recipes(name: str) -> list[Recipe]:
    """The three networks of `best-ensembles`, or what another table needs."""
    return list(needed([expand(paper.load(name), "smoke", SETTINGS)], Store(Path("nowhere"))))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Table 6: three Cut-MixMos with CutMix, as ensembles of one, two and three."""
    out = tmp_path_factory.mktemp("reproduce") / "out"
    assert main(["reproduce", "best-ensembles", *SMOKE, "--seeds", "3", "--out", str(out)]) == 0
    return out


def table(out: Path, name: str = "best-ensembles") -> list[dict[str, str]]:
    folder = out / "tables" / SLUG
    return list(csv.DictReader((folder / f"{name}.csv").read_text().splitlines()))


def changed(folder: Path) -> dict[str, int]:
    """When each file of the runs was written."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_the_table_shows_our_score_the_papers_and_the_difference(made: Path) -> None:
    runs = [Run.open(made / "runs" / run_name(recipe)) for recipe in recipes("best-ensembles")]
    rows = {(row["row"], row["column"]): row for row in table(made)}
    top1 = [100 * run.read_scores()["best"]["ensemble"]["top1"] for run in runs]
    one = rows["N=1", "average Top1 %"]
    assert float(one["ours"]) == pytest.approx(sum(top1) / 3)
    assert float(one["spread"]) == pytest.approx((sum((x - sum(top1) / 3) ** 2 for x in top1) / 2) ** 0.5)
    assert (one["paper"], one["paper_spread"], one["seeds"]) == ("85.77", "0.14", "3")
    assert float(one["difference"]) == pytest.approx(sum(top1) / 3 - 85.77)
    best = max(runs, key=lambda run: run.read_scores()["best"]["ensemble"]["top1"])
    assert float(rows["N=1", "best run NLLc"]["ours"]) == pytest.approx(best.read_scores()["best"]["ensemble"]["nllc"])
    triple = rows["N=3", "average NLLc"]
    assert float(triple["ours"]) == pytest.approx(score_runs(runs).reports["best"].ensemble.nllc)
    assert (triple["seeds"], triple["spread"]) == ("1", "")
    pairs = [score_runs([runs[i], runs[j]]).reports["best"].ensemble.nllc for i, j in ((0, 1), (1, 2), (0, 2))]
    assert float(rows["N=2", "average NLLc"]["ours"]) == pytest.approx(sum(pairs) / 3)


def test_markdown_and_picture(made: Path) -> None:
    folder = made / "tables" / SLUG
    text = (folder / "best-ensembles.md").read_text()
    first = text.partition("\n")[0]
    assert all(word in first for word in ("Table 6", "scale smoke", "3 seeds", "batch_size = 256", "epochs = 1"))
    assert "(86.81 ± 0.17" in text
    assert "missing" not in text
    assert "Corrupted images" not in text  # of which it has none
    assert (folder / "best-ensembles.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_there_is_not_trained_again(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = changed(made / "runs")
    assert main(["reproduce", "best-ensembles", *SMOKE, "--seeds", "3", "--out", str(made)]) == 0
    assert "run 1 of" not in capsys.readouterr().err
    assert changed(made / "runs") == before


def test_dry_run_prints_the_plan_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixmo.cli.reproduce.speed_of", lambda device: h200())
    names = ["best-ensembles", "encoder-norms"]
    assert main(["reproduce", *names, *SMOKE, "--seeds", "1", "--dry-run", "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "4 runs needed, 0 there, 4 to train" in text
    assert all(run_name(recipe) in text for name in names for recipe in recipes(name))
    assert re.search(r"^  train +\d+ s  digits-\S+$", text, re.MULTILINE)  # most of it compilation
    assert not (tmp_path / "out").exists()


def test_all_are_those_that_the_scale_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixmo.cli.reproduce.speed_of", lambda device: h200())
    monkeypatch.setattr(paper, "names", lambda: ["imagenet", "encoder-norms"])
    assert main(["reproduce", "all", "--scale", "hour", "--dry-run", *ON_CPU, "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert paper.load("encoder-norms").title in text
    assert paper.load("imagenet").title not in text


def test_a_run_to_resume_costs_what_is_left_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Speed("slow", 1.0, 0.0, 0.0, compiling=0.0)  # a second a step
    monkeypatch.setattr("mixmo.cli.reproduce.speed_of", lambda device: slow)
    monkeypatch.setattr("mixmo.cli.plans.h200", lambda: slow)
    (recipe,) = needed([expand(paper.load("encoder-norms"), "smoke", {"epochs": 4})], Store(tmp_path))
    command = ["reproduce", "encoder-norms", "--scale", "smoke", "--set", "epochs=4", *ON_CPU, "--out", str(tmp_path)]
    assert main([*command, "--dry-run"]) == 0
    whole = re.search(r"  train +(\d+\.\d) min ", capsys.readouterr().out, re.MULTILINE)
    run = Run.create(tmp_path / "runs" / run_name(recipe), recipe)
    (run.path / "checkpoints").mkdir()
    (run.path / "metrics.jsonl").write_text('{"epoch": 3}\n')
    assert main([*command, "--dry-run"]) == 0
    rest = re.search(r"  resume +(\d+\.\d) min ", capsys.readouterr().out, re.MULTILINE)
    assert whole is not None
    assert rest is not None
    minutes = [float(found[1]) for found in (whole, rest)]
    assert minutes[0] > 1
    assert minutes[1] == pytest.approx(minutes[0] / 4, abs=0.1)


def test_a_half_done_table_is_completed_to_the_same_numbers(made: Path, tmp_path: Path) -> None:
    """One run is finished, one broke off in the middle, one is not begun."""
    out, (first, second, _) = tmp_path / "out", recipes("best-ensembles")
    shutil.copytree(made / "runs" / run_name(first), out / "runs" / run_name(first))
    train(second, out / "runs" / run_name(second), Runtime(device="cpu", quiet=True), until=5)
    before = changed(out / "runs" / run_name(first))
    steps = {path.name for path in (out / "runs" / run_name(second) / "checkpoints").iterdir()}
    assert any(name.endswith("5") for name in steps)
    assert main(["reproduce", "best-ensembles", *SMOKE, "--seeds", "3", "--out", str(out)]) == 0
    assert changed(out / "runs" / run_name(first)) == before
    assert table(out) == table(made)


def test_without_training_empty_cells_are_counted(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs kept elsewhere without weights and logits serve the rows of single networks."""
    kept, (first, second, _) = tmp_path / "results", recipes("best-ensembles")
    for recipe in (first, second):
        folder = kept / "somewhere" / f"seed{recipe.seed}"
        folder.mkdir(parents=True)
        for name in ("recipe.yaml", "scores.json", "environment.json", "metrics.jsonl"):
            shutil.copy(made / "runs" / run_name(recipe) / name, folder)
    folders = [("--runs", kept), ("--data", tmp_path / "data"), ("--corrupted", tmp_path / "corrupted")]
    arguments = ["--seeds", "3", *[word for name, path in folders for word in (name, str(path))]]
    out = ["--scale", "smoke", "--out", str(tmp_path / "out")]
    assert main(["reproduce", "best-ensembles", *out, *SET, *ON_CPU, "--report", *arguments]) == 0
    text = capsys.readouterr().out
    assert "3 of 3 runs are missing (2 of them kept without the logits or weights it needs)" in text
    assert f"`mixmo reproduce best-ensembles {' '.join([*out, *SET, *arguments])}` trains them." in text
    rows = {(row["row"], row["column"]): row for row in table(tmp_path / "out")}
    assert rows["N=1", "average Top1 %"]["seeds"] == "2"
    assert rows["N=2", "average Top1 %"]["ours"] == ""
    assert "| N=2 | - (86.63 ± 0.19) |" in text


def test_what_was_derived_serves_without_the_runs(made: Path, tmp_path: Path) -> None:
    """The scores of ensembles are kept small beside the runs, and found in folders from elsewhere."""
    shutil.copytree(made / "derived", tmp_path / "results" / "derived")
    arguments = ["--seeds", "3", "--runs", str(tmp_path / "results"), "--out", str(tmp_path / "out")]
    assert main(["reproduce", "best-ensembles", *SMOKE, "--report", *arguments]) == 0
    there = {(row["row"], row["column"]): row["ours"] for row in table(made)}
    here = {(row["row"], row["column"]): row["ours"] for row in table(tmp_path / "out")}
    assert here["N=3", "average NLLc"] == there["N=3", "average NLLc"]
    assert here["N=1", "average NLLc"] == ""
    assert not any("/" in path.read_text() for path in (made / "derived").rglob("scores.json"))  # no paths


def test_ctrl_c_saves_and_the_same_command_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "encoder-norms", *SMOKE, "--out", str(tmp_path)]
    folder = tmp_path / "runs" / run_name(recipes("encoder-norms")[0])

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while not (folder / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    status = main(command)
    thread.join()
    assert status == 130
    assert "0 of 1 runs done before it; the same command continues" in capsys.readouterr().err
    assert not Run.open(folder).is_finished()
    assert any((folder / "checkpoints").iterdir())
    assert main(command) == 0
    assert "(resumed)" in capsys.readouterr().err
    norms = json.loads((tmp_path / "derived" / folder.name / "filters-best.json").read_text())["encoders"]
    rows = {(row["row"], row["column"]): float(row["ours"]) for row in table(tmp_path, "encoder-norms")}
    assert rows["filter 3", "c_1 l1 norm"] == pytest.approx(norms[1][3])
    assert (tmp_path / "tables" / SLUG / "encoder-norms.png").is_file()


def test_dynamics_figure_is_drawn_from_metrics(tmp_path: Path) -> None:
    """Scores that read epochs. Only one of its seven rows is there; the table is made from it."""
    row = paper.load("dynamics").rows[3]
    wanted = expand(paper.load("dynamics"), "smoke", SETTINGS).cells[3, 0].groups[0][0]
    run = train(wanted, tmp_path / "runs" / run_name(wanted), Runtime(device="cpu", quiet=True))
    assert main(["reproduce", "dynamics", *SMOKE, "--report", "--out", str(tmp_path)]) == 0
    rows = {(r["row"], r["column"]): r["ours"] for r in table(tmp_path, "dynamics")}
    members = [member["top1"] for member in run.read_metrics()[-1]["test"]["members"]]
    assert float(rows[row.label, "individual Top1 %"]) == pytest.approx(50 * sum(members))
    assert [label for (label, column), ours in rows.items() if ours and column == "NLLc"] == [row.label]
    epochs = list(csv.DictReader((tmp_path / "tables" / SLUG / "dynamics-epochs.csv").read_text().splitlines()))
    assert [line["run"] for line in epochs] == [row.label]
    assert (tmp_path / "tables" / SLUG / "dynamics.png").is_file()


def test_corruptions_of_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The mean over all corruptions, each scored by itself."""
    out = tmp_path / "out"
    vanilla = expand(paper.load("cifar100-c"), "smoke", SETTINGS).cells[0, 0].groups[0][0]
    run = train(vanilla, out / "runs" / run_name(vanilla), Runtime(device="cpu", quiet=True))
    assert main(["reproduce", "cifar100-c", *SMOKE, "--report", "--out", str(out)]) == 0
    assert "Corrupted images: digits, corrupted here; not CIFAR-100-C" in capsys.readouterr().out
    net, about = load_network(run, "best").eval(), run.read_dataset()
    images, labels = corruption.corrupted_digits()
    assert len(images) == 19 * 5 * 360
    right = []
    with torch.no_grad():
        for one, label in zip(images.split(360), labels.split(360), strict=True):
            x = (one.permute(0, 3, 1, 2) / 255 - about["mean"][0]) / about["std"][0]
            right.append((net(x).argmax(1) == label).double().mean().item())
    rows = {(row["row"], row["column"]): row["ours"] for row in table(out, "cifar100-c")}
    assert float(rows["1 Net.", "Top1 %"]) == pytest.approx(100 * sum(right) / 95, abs=0.01)
    assert rows["CutMix", "Top1 %"] == ""
    assert max(right) - min(right) > 0.1  # they are corrupted indeed


def test_scores_on_other_corrupted_images_are_not_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the images the table says how to get them; what was scored is kept, and says on which images."""
    recipe = expand(paper.load("cifar100-c"), "minutes").cells[0, 0].groups[0][0]
    run = Run.create(tmp_path / "runs" / "vanilla", recipe)
    for name in ("scores.json", "dataset.json", "best.safetensors", "logits-best.safetensors"):
        (run.path / name).touch()
    command = ["reproduce", "cifar100-c", "--scale", "minutes", "--report", "--out", str(tmp_path), *ON_CPU]

    def cell(images: str) -> tuple[str, str]:
        assert main([*command, "--corrupted", str(tmp_path / images)]) == 0
        text = capsys.readouterr().out
        return next(line for line in text.splitlines() if line.startswith("| 1 Net. |")).split("|")[2].strip(), text

    def scored(paths: list[Path], folder: Path, which: str, device: object) -> CorruptionScores:
        assert [Run.open(path).recipe for path in paths] == [recipe]
        assert which == "best"
        pooled = BriefScores(top1={"CIFAR-100-C": 0.5, "cifar100-c-style": 0.25}[folder.name], top5=0.75, nll=2.5)
        return CorruptionScores(str(folder), which, 10_000, clean=pooled, pooled=pooled, mce=None, corruptions={})

    monkeypatch.setattr(corruption, "score_corruptions", scored)
    shown, text = cell("CIFAR-100-C")
    assert shown == "- (52.2)"
    assert f"Not computed: {tmp_path / 'CIFAR-100-C'} is not there; `mixmo data get cifar100-c" in text
    (tmp_path / "cifar100-c-style").mkdir()
    shown, text = cell("cifar100-c-style")
    assert shown == "25.0 (52.2, -27.2)"
    assert "Corrupted images: cifar100-c-style; not CIFAR-100-C" in text
    (tmp_path / "CIFAR-100-C").mkdir()
    shown, text = cell("CIFAR-100-C")
    assert shown == "50.0 (52.2, -2.2)"
    assert "Corrupted images" not in text
    monkeypatch.undo()
    assert cell("CIFAR-100-C")[0] == shown  # from what is kept


def test_missing_corrupted_images_are_reported_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default folder may come later; one that was named must be there."""
    trained = list[int]()
    monkeypatch.setattr("mixmo.cli.reproduce.run_here", lambda recipes, *_: trained.append(len(recipes)) or {})
    where = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    command = ["reproduce", "cifar100-c", "--scale", "minutes", *ON_CPU, *where]
    assert main(command) == 0
    assert "cells on corrupted images will be empty" in capsys.readouterr().err
    assert trained == [12]
    assert main([*command, "--corrupted", str(tmp_path / "nowhere")]) == 2
    assert "nowhere is not there" in capsys.readouterr().err
    assert trained == [12]
    assert main(["reproduce", "mixing", "--scale", "minutes", *ON_CPU, *where]) == 0  # it has no such cells
    assert "corrupted" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["recipe.yaml", "environment.json", "scores.json"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_broken_run_does_not_hide_the_others(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, gone: bool
) -> None:
    shutil.copytree(made / "runs", tmp_path / "runs")
    broken = tmp_path / "runs" / run_name(recipes("best-ensembles")[0]) / name
    broken.write_bytes(broken.read_bytes()[:20])
    if gone:
        broken.unlink()
    assert main(["reproduce", "best-ensembles", *SMOKE, "--seeds", "3", "--report", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    rows = {(row["row"], row["column"]): row for row in table(tmp_path)}
    assert rows["N=1", "average Top1 %"]["seeds"] == ("3" if name == "environment.json" else "2")
    expected = {"recipe.yaml": "missing", "environment.json": "1 on an unknown device", "scores.json": "cannot be read"}
    assert ("missing" if gone and name == "scores.json" else expected[name]) in said.out
    assert ("passed over" in said.err) == (name == "recipe.yaml" and not gone)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:20],
        lambda text: text.replace('"top1": 0.', '"top1": 0.9'),  # a number like others
        lambda text: '{"a": 1}',
        lambda text: "[1]",
        lambda text: "\0" * 20,
    ],
)
def test_what_was_derived_and_is_broken_is_computed_again(
    made: Path, tmp_path: Path, damage: Callable[[str], str]
) -> None:
    shutil.copytree(made, tmp_path / "out")
    for path in (tmp_path / "out" / "derived").rglob("scores.json"):
        text = path.read_text()
        path.write_text(damage(text))
        assert path.read_text() != text
    assert (
        main(["reproduce", "best-ensembles", *SMOKE, "--seeds", "3", "--report", "--out", str(tmp_path / "out")]) == 0
    )
    assert table(tmp_path / "out") == table(made)


def test_the_list_shows_finished_and_scored_runs(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs without logits are scored, not done; runs of another protocol are named with what counts them."""
    monkeypatch.setattr("mixmo.cli.reproduce.speed_of", lambda device: h200())
    (tmp_path / "empty").mkdir()
    shutil.copytree(made / "runs", tmp_path / "kept")
    command = ["reproduce", "--list", "best-ensembles", "--scale", "smoke", "--out", str(tmp_path / "out"), *ON_CPU]
    runs = ["--runs", str(tmp_path / "kept"), "--runs", str(tmp_path / "empty")]  # both are searched
    assert main([*command, *SET, *runs]) == 0
    text = capsys.readouterr().out
    assert text.startswith("scale smoke")
    assert "batch_size = 256; epochs = 1" in " ".join(text.split())
    assert re.search(r"^best-ensembles +Table 6 +3/3 +0 ", text, re.MULTILINE)
    assert main([*command, *runs]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^best-ensembles +Table 6 +0/3 +0 ", text, re.MULTILINE)
    assert "not counted: 3 runs of another protocol (with --set batch_size=256 --set epochs=1 counted)" in " ".join(
        text.split()
    )
    for path in (tmp_path / "kept").rglob("logits-*"):
        path.unlink()
    assert main([*command, *SET, *runs]) == 0
    assert re.search(r"^best-ensembles +Table 6 +0/3 +3 ", capsys.readouterr().out, re.MULTILINE)


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, (first, second, third) = tmp_path / "out", recipes("best-ensembles")
    (out / "runs" / run_name(first)).mkdir(parents=True)
    (out / "runs" / run_name(first) / "notes.txt").write_text("mine")
    with claim(Run.create(out / "runs" / run_name(second), second).path):
        status = main(["reproduce", "best-ensembles", *SMOKE, "--seeds", "3", "--out", str(out)])
    errors = capsys.readouterr().err
    assert status == 2
    assert "exists already" in errors
    assert "another process is training" in errors
    assert "2 of 3 runs failed and are missing above" in errors
    assert Run.open(out / "runs" / run_name(third)).is_finished()


def test_too_little_memory_for_one_run_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("mixmo.engine.training.Trainer", exhausted)
    assert main(["reproduce", "best-ensembles", *SMOKE, "--seeds", "3", "--out", str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert errors.count("failed for the same reason") == 2
    assert "3 of 3 runs failed and are missing above; the first: there is not enough memory; end other pro" in errors


def test_a_reason_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--data", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    assert main(["reproduce", "mixing", "--scale", "minutes", *ON_CPU, *where]) == 2
    errors = capsys.readouterr().err
    assert errors.count("mixmo data get cifar100") == 2  # of the first run, and at the end
    assert errors.count("failed for the same reason") == 6
    assert " left" not in errors  # nothing was done, so nothing is known


def test_time_left_is_that_of_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs of one epoch each, which cost the same. One was there before; one is made in ten seconds."""
    now, store, plan = [100.0], Store(tmp_path), recipes("best-ensembles")
    monkeypatch.setattr("mixmo.reproduce.execute.time", SimpleNamespace(monotonic=lambda: now[0]))

    def make(recipe: Recipe) -> None:
        store.folder(recipe).mkdir(parents=True)
        (store.folder(recipe) / "metrics.jsonl").write_text('{"epoch": 1}\n')

    make(plan[0])
    remaining = Remaining(plan, store)
    now[0] += 10
    assert remaining.text([]) == ""
    make(plan[1])
    assert remaining.text([]) == "; all: 0:10 left"
    assert remaining.text([plan[2]]) == "; all: 0:00 left"  # it failed: nothing of it is waited for


def test_the_gallery_of_masks_needs_no_download(tmp_path: Path) -> None:
    """On the digits' own 8 x 8 pixels, PatchUp's blocks of 7 would cover everything at every ratio."""
    columns = gallery(*two_images(some_images(tmp_path))[:2])
    assert [cell.area for cell in columns["patchup"]] == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9], abs=0.25)


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As on a full disk; before, the command that made half of what was asked for ended well."""
    pytest.importorskip("matplotlib")
    picture = tmp_path / "tables" / "untrained" / "weights.png"
    picture.mkdir(parents=True)
    assert main(["reproduce", "weights", "--scale", "smoke", *ON_CPU, "--out", str(tmp_path)]) == 2
    assert "weights.png is a folder" in capsys.readouterr().err
    assert sorted(path.name for path in picture.parent.iterdir()) == ["weights.csv", "weights.md", "weights.png"]


def test_tables_without_training(tmp_path: Path) -> None:
    assert main(["reproduce", "weights", "parameters", "--scale", "smoke", *ON_CPU, "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "runs").exists()
    text = (tmp_path / "tables" / "untrained" / "parameters.md").read_text()
    assert "nothing is trained" in text.partition("\n")[0]
    assert "| WRN-28-10 MixMo | 36.60 (36.60, +0.00) | 5.9571 (5.9571, -0.0000) |" in text
    with (tmp_path / "tables" / "untrained" / "weights.csv").open() as file:
        rows = {(row["row"], row["column"]): float(row["ours"]) for row in csv.DictReader(file)}
    assert rows["r=1", "w_r(0.3)"] == pytest.approx(0.6)
    assert rows["r=3", "w_r(0.2)"] == pytest.approx(2 * 0.2 ** (1 / 3) / (0.2 ** (1 / 3) + 0.8 ** (1 / 3)))
    assert rows["r=inf", "w_r(0.9)"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say which table or figure"),
        (["tabel"], "unknown table or figure"),
        (["imagenet", "--scale", "hour"], "is empty at --scale hour"),
        (["p", "--seeds", "0"], ">= 1"),
        (["p", "--runs", "not-there"], "is not a folder"),
        (["p", "--scale", "huge"], "scale"),
        (["p", "--set", "p=0.3"], "--set p=0.3 changes nothing in p"),
    ],
)
def test_bad_arguments_raise_an_error(arguments: list[str], message: str, said: Callable[..., str]) -> None:
    assert message in said("reproduce", *arguments, "--device", "cpu")
