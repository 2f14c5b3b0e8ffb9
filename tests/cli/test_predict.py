"""mixmo predict: every row agrees with mixmo.predict, in every format; unreadable files; errors."""

import csv
import errno
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import mixmo
from mixmo.cli import predict as command
from mixmo.cli.app import main
from mixmo.cli.rows import check_out, writing
from mixmo.data.types import Dataset
from mixmo.engine import Runtime, train
from mixmo.evaluation import models
from mixmo.recipes import named
from mixmo.runs.directory import Run
from mixmo.utils.errors import UserError

ON_CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    recipe = named("digits/cut-mixmo").replace(epochs=3, width=1, batch_size=64, repetition=1, validation=300)
    return train(recipe, tmp_path_factory.mktemp("predict") / "run", Runtime(device="cpu", quiet=True))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, digits: Dataset) -> Path:
    """60 digits as files in class folders; and three files that are no images."""
    root = tmp_path_factory.mktemp("images")
    for number in range(60):
        path = root / str(int(digits.test.labels[number])) / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(digits.test.images[number, ..., 0].numpy()).save(path)
    (root / "0" / "text.png").write_text("not an image")
    (root / "1" / "cut.png").write_bytes(min((root / "1").iterdir()).read_bytes()[:60])
    (root / "2" / "empty.jpg").touch()
    (root / "notes.txt").write_text("left alone")
    return root


def run_predict(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> tuple[str, str]:
    assert main(["predict", *map(str, arguments), *ON_CPU]) == status
    out, err = capsys.readouterr()
    return out, err


def expected(run: Run, digits: Dataset, number: int) -> mixmo.Prediction:
    return mixmo.predict(mixmo.load(run.path), digits.test.images[[number]])


def test_csv_rows_agree_with_predict(
    run: Run, images: Path, digits: Dataset, capsys: pytest.CaptureFixture[str], monkeypatch
):
    monkeypatch.setattr(models, "default_batch", lambda device, pixels: 7)  # several batches
    out, err = run_predict(capsys, run.path, images)
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["path"] for row in rows] == sorted(str(path) for path in images.rglob("[0-9][0-9].png"))
    for row in rows[::9]:
        one = expected(run, digits, int(Path(row["path"]).stem))
        assert row["label"] == str(one.labels.item())
        assert float(row["probability"]) == pytest.approx(one.probs.max().item(), rel=1e-4)
        assert float(row["calibrated_probability"]) == pytest.approx(one.calibrated.max().item(), rel=1e-4)
        for name in ("entropy", "mutual_information", "disagreement", "energy"):
            assert float(row[name]) == pytest.approx(getattr(one, name).item(), rel=1e-3, abs=1e-5)
        assert set(json.loads(row["set"])) == {str(k) for k in one.sets[0].nonzero()[:, 0].tolist()}
        assert row["abstain"] == str(one.abstain.item()).lower()
    for name in ("0/text.png: not an image", "1/cut.png: cannot be read", "2/empty.jpg: not an image"):
        assert f"skipped {images}/{name}" in err
    assert "3 of 63 files skipped, 60 predicted" in err


def test_all_formats_hold_the_same_rows(run: Run, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    files = {form: tmp_path / f"rows.{form}" for form in ("csv", "json", "parquet")}
    for form, path in files.items():
        out, _ = run_predict(capsys, run.path, images, "--format", form, "--out", path, "--sets", "aps", "--level", 0.8)
        assert out == ""
    by_json = json.loads(files["json"].read_text())
    by_parquet = pyarrow.parquet.read_table(files["parquet"]).to_pylist()
    by_csv = list(csv.DictReader(files["csv"].read_text().splitlines()))
    assert len(by_json) == len(by_csv) == 60
    assert by_parquet == by_json
    for row, text in zip(by_json, by_csv, strict=True):
        assert list(row) == list(text) == list(command.COLUMNS)
        assert json.loads(text["set"]) == row["set"]
        assert text["entropy"] == f"{row['entropy']:.6g}"
        assert text["abstain"] == str(row["abstain"]).lower()
    assert any(len(row["set"]) > 1 and row["set"][0] == row["label"] for row in by_json)  # the likeliest first


def test_a_file_name_may_begin_with_a_dash(run: Run, images: Path, tmp_path: Path, capsys, monkeypatch):
    shutil.copy(min((images / "0").glob("*.png")), tmp_path / "-5.png")
    monkeypatch.chdir(tmp_path)
    assert main(["predict", *ON_CPU, str(run.path), "--", "-5.png"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].startswith("-5.png,")
    assert "skipped" not in err


def test_csv_keeps_sets_of_classes_with_any_name(tmp_path: Path):
    rows = [{"set": ["a|b", "a"]}, {"set": ["a|b|a"]}, {"set": ["é", 'b, "c"']}, {"set": []}, {"set": None}]
    out = tmp_path / "rows.csv"
    with writing("csv", out, {"set": "list"}) as write:
        write(rows)
    with out.open(newline="") as file:
        cells = [row["set"] for row in csv.DictReader(file)]
    assert [json.loads(cell) if cell else None for cell in cells] == [row["set"] for row in rows]
    assert "é" in out.read_text(encoding="utf-8")
    assert b"\r" not in out.read_bytes()


def test_no_rows_are_an_empty_json_array(capsys: pytest.CaptureFixture[str]):
    with writing("json", None, {}):
        pass
    assert json.loads(capsys.readouterr().out) == []


def test_parquet_without_pyarrow_raises_an_error(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="pyarrow"):
        check_out("parquet", tmp_path / "rows.parquet")


def test_a_saved_folder_predicts_as_its_run(run: Run, images: Path, tmp_path: Path, capsys):
    folder = mixmo.save_pretrained(mixmo.load(run.path), tmp_path / "model")
    first, second = (
        json.loads(run_predict(capsys, path, images, "--format", "json")[0]) for path in (run.path, folder)
    )
    for row, other in zip(first, second, strict=True):
        assert other == {k: pytest.approx(v, rel=1e-4, abs=1e-6) if isinstance(v, float) else v for k, v in row.items()}


def test_colour_images_of_any_size_are_prepared(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Shorter side to 12, centre crop of 8, normalised: as by hand with PIL."""
    net = mixmo.create("wrn10_1", classes=3).eval()
    about = mixmo.About((3, 8, 8), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), resize=12)
    mixmo.save_pretrained(net, tmp_path / "model", about=about)
    pixels = np.random.default_rng(0).integers(0, 256, (24, 48, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    out, err = run_predict(capsys, tmp_path / "model", tmp_path / "one.png", "--format", "json")
    (row,) = json.loads(out)
    small = np.asarray(Image.fromarray(pixels).resize((24, 12), Image.Resampling.BILINEAR))[2:10, 8:16]
    ready = torch.from_numpy((small / 255 - np.array(about.mean)) / np.array(about.std)).permute(2, 0, 1)[None]
    assert row["probability"] == pytest.approx(mixmo.predict(net, ready).confidence.item(), rel=1e-4)
    assert row["label"] in ("0", "1", "2")  # no names: their numbers
    assert (row["calibrated_probability"], row["set"], row["abstain"]) == (None, None, None)
    assert "has no calibration" in err


def test_calibrate_on_held_out_files(runs: list[Run], images: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """In class folders or in a CSV; the predictions of the network do not change."""
    table = tmp_path / "held.csv"
    lines = [f"{path},{path.parent.name}" for path in sorted(images.rglob("[0-9][0-9].png"))]
    table.write_text("path,label\n" + "\n".join(lines))
    plain = json.loads(run_predict(capsys, runs[0].path, images / "3", "--format", "json")[0])
    found = []
    for held in (images, table):
        given = ("--calibrate-on", held, "--sets", "raps", "--level", 0.8, "--risk", 0.5)
        out, err = run_predict(capsys, runs[0].path, images / "3", "--format", "json", *given)
        assert "has no calibration" not in err
        found.append(json.loads(out))
    assert found[0] == found[1]
    names = ("path", "label", "probability", "entropy")
    assert [[row[name] for name in names] for row in found[0]] == [[row[name] for name in names] for row in plain]
    assert all(row["calibrated_probability"] > 0 and row["abstain"] is not None for row in found[0])
    given = ("--calibrate-on", images, "--level", 0.95)
    surer = json.loads(run_predict(capsys, runs[0].path, images / "3", "--format", "json", *given)[0])
    assert sum(len(row["set"]) for row in surer) > sum(len(row["set"]) for row in found[0])


def test_a_risk_that_cannot_be_guaranteed_is_reported(
    runs: list[Run], images: Path, capsys: pytest.CaptureFixture[str]
):
    """Too few held-out images: every image is marked abstain, and a sentence says why."""
    calibrated = (runs[0].path, images / "3", "--format", "json", "--calibrate-on", images)
    out, err = run_predict(capsys, *calibrated)
    assert all(row["abstain"] for row in json.loads(out))
    (sentence,) = [line for line in err.splitlines() if "guaranteed" in line]
    assert "60 held-out images" in sentence
    assert "at least 197" in sentence
    out, err = run_predict(capsys, *calibrated, "--risk", 0.9)
    assert not all(row["abstain"] for row in json.loads(out))
    assert "guaranteed" not in err


def test_randomised_sets_are_the_same_each_time(runs: list[Run], images: Path, tmp_path: Path, capsys):
    calibration = mixmo.calibrate(*runs[0].read_logits(), method="aps", randomised=True)
    folder = mixmo.save_pretrained(mixmo.load(runs[0].path), tmp_path / "net", calibration=calibration)
    assert run_predict(capsys, folder, images)[0] == run_predict(capsys, folder, images)[0]


def test_a_run_of_several_networks_is_an_ensemble(
    tmp_path: Path, images: Path, digits: Dataset, capsys: pytest.CaptureFixture[str]
):
    recipe = named("digits/cut-mixmo").replace(epochs=1, width=1, batch_size=256, networks=2)
    run = train(recipe, tmp_path / "run", Runtime(device="cpu", quiet=True))
    (path,) = images.glob("*/17.png")
    (row,) = json.loads(run_predict(capsys, run.path, path, "--format", "json")[0])
    both = mixmo.predict([mixmo.load(path) for path in run.network_paths()], digits.test.images[[17]])
    assert row["probability"] == pytest.approx(both.confidence.item(), rel=1e-4)
    assert row["mutual_information"] == pytest.approx(both.mutual_information.item(), rel=1e-3)


def test_no_file_is_written_if_no_image_can_be_read(
    run: Run, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "rows.csv"
    (tmp_path / "empty").mkdir()
    for given in ((images / "0" / "text.png", images / "notes.txt"), (tmp_path / "empty",)):
        _, err = run_predict(capsys, run.path, *given, "--out", out, status=2)
        assert "no image can be read" in err
        assert not out.exists()


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_incomplete_output_keeps_the_suffix_part(tmp_path: Path, capsys, form: str, fault: BaseException):
    out = tmp_path / f"rows.{form}"

    def fail() -> None:
        with writing(form, out, {"label": "string"}) as write:
            write([{"label": "cat"}])
            assert not out.exists()
            assert form == "parquet" or "cat" in Path(f"{out}.part").read_text()  # as they come
            raise fault

    with pytest.raises(type(fault)):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == [f"rows.{form}.part"]
    assert f"{out}.part" in capsys.readouterr().err
    with pytest.raises(FileExistsError), writing(form, out, {"label": "string"}):  # another process's
        pass
    Path(f"{out}.part").unlink()
    with writing(form, out, {"label": "string"}) as write:
        write([{"label": "cat"}])
    assert [path.name for path in tmp_path.iterdir()] == [f"rows.{form}"]


@pytest.mark.parametrize(
    ("form", "name", "expected"),
    [
        (None, "a.json", "json"),
        (None, "a.CSV", "csv"),
        (None, "a.txt", "csv"),
        (None, None, "csv"),
        ("json", "a.txt", "json"),
        ("json", "a.json", "json"),
    ],
)
def test_the_format_is_that_of_the_suffix(form: str | None, name: str | None, expected: str, tmp_path: Path) -> None:
    assert check_out(form, tmp_path / name if name else None) == expected


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_among_the_images_is_skipped(run: Run, images: Path, tmp_path: Path, capsys):
    shutil.copy(min((images / "3").glob("*.png")), tmp_path / "a.png")
    os.mkfifo(tmp_path / "b.png")
    out, err = run_predict(capsys, run.path, tmp_path)
    assert out.count("a.png") == 1
    assert "skipped" in err
    assert "b.png" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("RUN", "nowhere.png"), "nowhere.png"),
        (("IMAGES", "IMAGES"), "neither a run directory nor"),
        (("RUN", "IMAGES", "--format", "parquet"), "--out"),
        (("RUN", "IMAGES", "--out", "TAKEN"), "taken.csv exists already"),
        (("RUN", "IMAGES", "--out", "EMPTY/a/b.csv"), "b.csv: its folder does not exist"),
        (("RUN", "IMAGES", "--format", "csv", "--out", "EMPTY/b.json"), "--format csv does not fit --out"),
        (("RUN", "IMAGES", "--format", "xml"), "format"),
        (("RUN", "IMAGES", "--level", "90"), "level"),
        (("RUN", "IMAGES", "--calibrate-on", "FOREIGN"), "cat"),
        (("PLAIN", "IMAGES", "--level", "0.8"), "--level needs held-out images"),
        (("PLAIN", "IMAGES", "--sets", "aps"), "--sets needs held-out images"),
        (("SAVED", "IMAGES", "--risk", "0.1"), "--risk needs held-out images"),
        (("BOTH", "IMAGES", "--level", "0.8"), "--level needs held-out images"),
    ],
)
def test_bad_input_raises_an_error(run: Run, runs: list[Run], images: Path, tmp_path: Path, said, arguments, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "taken.csv").write_text("mine")
    (tmp_path / "foreign" / "cat").mkdir(parents=True)
    (tmp_path / "foreign" / "cat" / "1.png").touch()
    mixmo.save_pretrained(mixmo.load(run.path), tmp_path / "saved")
    Run.create(tmp_path / "both", run.recipe.replace(networks=2))
    for name in ("0", "1"):
        (tmp_path / "both" / name).symlink_to(run.path)
    places = {
        "RUN": run.path,
        "PLAIN": runs[0].path,
        "SAVED": tmp_path / "saved",
        "BOTH": tmp_path / "both",
        "IMAGES": images,
        "EMPTY": tmp_path / "empty",
        "TAKEN": tmp_path / "taken.csv",
        "FOREIGN": tmp_path / "foreign",
    }
    given = ["/".join(str(places.get(part, part)) for part in word.split("/")) for word in arguments]
    assert message in said("predict", *given, *ON_CPU)
    assert (tmp_path / "taken.csv").read_text() == "mine"
