"""The programs under benchmarks/ still fit the package: they are read, and the cheap ones run."""

import json
import runpy
import signal
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from mixmo.data.catalog import DATASETS
from mixmo.data.types import Dataset, Split
from mixmo.reproduce.store import Store
from mixmo.runs.directory import Run

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SMALL = ["--models", "wrn10_1", "--formats", "pt2", "--batches", "1", "--loads", "2", "--pairs", "1"]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a benchmark registers is gone after the test."""
    monkeypatch.setattr(DATASETS, "_things", dict(DATASETS._things))


def run(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch, main: bool = True) -> None:
    """As `python benchmarks/NAME ARGUMENTS` does; otherwise it is only imported."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.syspath_prepend(str(FOLDER))
    runpy.run_path(str(FOLDER / name), run_name="__main__" if main else "imported")


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.py")))
def test_every_benchmark_can_be_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith("convolutions"):
        pytest.importorskip("triton")
    run(name, monkeypatch=monkeypatch, main=False)


def test_export_prints_its_table_to_the_last_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)  # other tests have theirs
    run("export.py", "--single", "alike", *SMALL, monkeypatch=monkeypatch)
    assert capsys.readouterr().out.splitlines()[-1].startswith("| wrn10_1 | pt2 | alike |")


def test_beyond_leaves_out_what_grey_images_and_missing_data_sets_do_not_allow(
    runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Corruptions need colours: on the digits they are left out, as data sets are that are not there."""
    out = tmp_path / "beyond.json"
    arguments = [str(runs[0].path), "--out", str(out), "--images", "300", "--data", str(tmp_path), "--device", "cpu"]
    run("beyond.py", *arguments, monkeypatch=monkeypatch)
    found = json.loads(out.read_text())
    assert {"clean", "ood noise", "calibration", "multiplexed"} <= set(found)
    assert 0.8 < found["calibration"]["lac 0.9"]["coverage"] < 1
    assert 0 <= found["ood noise"]["entropy"]["auroc"] <= 1


def test_everything_runs_the_other_jobs_when_one_fails_or_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a stopped job has started ends with it, and every output is in one archive."""
    names = runpy.run_path(str(FOLDER / "everything.py"))
    job, out, child = names["Job"], tmp_path / "out", tmp_path / "child"
    scripts = {
        "failing": "import missing",
        "slow": "import subprocess; child = subprocess.Popen(['sleep', '60']); "
        f"open({str(child)!r}, 'w').write(str(child.pid)); print('begun'); child.wait()",
        "good": "print('measured')",
    }
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)
    jobs = {name: job((str(tmp_path / f"{name}.py"),), 0.05) for name in scripts}
    main = names["main"]
    monkeypatch.setitem(main.__globals__, "jobs", lambda: jobs)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["everything.py", "--out", str(out), "--minutes-left", "5"])
    main()
    said = capsys.readouterr().out
    assert "failing: failed" in said
    assert "No module named 'missing'" in said
    assert "slow: failed" in said
    assert "good: done" in said
    state = Path(f"/proc/{child.read_text()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"
    with tarfile.open(out / "results.tar.gz") as archive:
        assert sorted(archive.getnames()) == ["failing.part", "good.txt", "slow.part"]
    assert "begun" in (out / "slow.part").read_text()
    main()
    assert "good: done before" in capsys.readouterr().out


def test_transfer_trains_what_others_start_from_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row starts from a pretraining of the first part, and every teacher is of the second."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = runpy.run_path(str(FOLDER / "transfer_table.py"))
    store = Store(tmp_path)
    keys = [names["Key"]("wrn28-4", source, row) for source in names["PRETRAINED"] for row in names["ROWS"]]
    first, alone, taught = names["Plan"](store, smoke=False).stages([(key, seed) for key in keys for seed in range(3)])
    assert (len(first), len(alone) + len(taught)) == (2, 3 * len(keys))
    folders = [{str(store.folder(recipe)) for recipe in part} for part in (first, alone)]
    assert {recipe.start for recipe in (*alone, *taught)} == folders[0]
    assert {recipe.teacher for recipe in taught} < folders[1]
    assert {recipe.teacher for recipe in (*first, *alone)} == {None}


def test_transfer_sheets_hold_the_same_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    names = runpy.run_path(str(FOLDER / "transfer.py"))
    random = torch.Generator().manual_seed(0)

    def split(each: int) -> Split:
        images = torch.randint(256, (2 * each, 32, 32, 3), generator=random, dtype=torch.uint8)
        return Split(images, torch.arange(2).repeat_interleave(each))

    half = (0.5, 0.5, 0.5)
    dataset = Dataset("", *map(split, names["EACH"]["tiny-imagenet-32"]), ("cat", "dog"), half, half)
    names["write_sheets"](dataset, tmp_path / "tiny-imagenet-32")
    found = names["tiny_imagenet_32"](tmp_path)
    assert found.classes == dataset.classes
    for mine, theirs in ((found.train, dataset.train), (found.test, dataset.test)):
        assert torch.equal(mine.resident, theirs.resident)
        assert torch.equal(mine.labels, theirs.labels)
