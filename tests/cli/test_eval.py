"""mixmo eval: tables, JSON and errors. The scores themselves: tests/evaluation."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mixmo.cli.app import main
from mixmo.data.corrupted import COMMON
from mixmo.data.types import Dataset, Split
from mixmo.engine import Runtime
from mixmo.engine.trainer import Trainer
from mixmo.evaluation.images import SplitImages
from mixmo.evaluation.models import Model, open_models
from mixmo.evaluation.pipeline import predict_images
from mixmo.metrics import DETECTORS, METRICS
from mixmo.metrics.logits import LabelledLogits
from mixmo.recipes import named
from mixmo.runs.directory import Run

ON_CPU = ("--device", "cpu")


def split(samples: int, seed: int) -> Split:
    images = torch.randint(0, 256, (samples, 32, 32, 3), generator=torch.Generator().manual_seed(seed)).byte()
    return Split(images, torch.arange(samples) % 3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    recipe = named("digits/cut-mixmo").replace(dataset="cifar10", width=1, epochs=1, batch_size=16, repetition=1)
    dataset = Dataset("cifar10", split(32, 1), split(6, 2), ("a", "b", "c"), (0.5,) * 3, (0.2,) * 3)
    path = tmp_path_factory.mktemp("runs") / "run"
    Trainer(recipe, dataset, Run.create(path, recipe), Runtime(device="cpu", quiet=True), torch.device("cpu")).run()
    return str(path)


@pytest.fixture(scope="module")
def corrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 15 common corruptions, of severity 2 and 4."""
    folder = tmp_path_factory.mktemp("corrupted") / "cifar10-c-style"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(np.arange(6) % 3, 2))
    for number, name in enumerate(COMMON):
        np.save(folder / f"{name}.npy", split(12, number).images.numpy())
    (folder / "severities.txt").write_text("2 4")
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("other")
    for part in ("train", "val"):
        for label in ("cat", "dog"):
            (root / part / label).mkdir(parents=True)
            Image.new("RGB", (20, 20), (200, 30, 30)).save(root / part / label / "1.png")
    return f"folder:{root}@16"


def test_corruptions_table_agrees_with_json(run: str, corrupted: Path, capsys: pytest.CaptureFixture[str]):
    twin = shutil.copytree(run, f"{run}-twin", dirs_exist_ok=True)
    assert main(["eval", run, twin, "--corruptions", str(corrupted), "--which", "best", "--json", *ON_CPU]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["runs"] == [run, twin]
    found = scores["corrupted"]
    assert (found["which"], found["images"], set(found["corruptions"])) == ("best", 6, set(COMMON))
    assert set(found["corruptions"]["fog"]) == {"2", "4"}
    assert main(["eval", run, "--corruptions", str(corrupted), "--which", "best", *ON_CPU]) == 0
    text = capsys.readouterr().out
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines() if "  " in line}
    fog = found["corruptions"]["fog"]
    assert rows["fog"][1:3] == [f"{100 * fog[severity]['top1']:.2f}" for severity in ("2", "4")]
    means = {key: (fog["2"][key] + fog["4"][key]) / 2 for key in ("top1", "top5", "nll")}
    expected = {"fog": means, "all of them, pooled": found["pooled"], "clean test set": found["clean"]}
    for name, three in expected.items():
        assert rows[name][-2:] == [f"{100 * three['top1']:.2f}", f"{three['nll']:.4f}"]
    title, head = text.splitlines()[:2]
    assert title == f"{run} on {corrupted}"
    assert " ".join(head.split()) == "Top1 % at severity 2 4 mean NLL"  # three classes: no Top5
    assert f"mean corruption error over the 15 common corruptions (unnormalised): {100 * found['mce']:.2f} %" in text
    assert "best epoch, 6 images per severity, severities 2, 4; no temperature" in text


def test_corruptions_json_is_exact(run: str, corrupted: Path, capsys: pytest.CaptureFixture[str]):
    """Every key of the JSON in its order; every value as the library gives it."""
    models, cells = open_models([Path(run)], "last", torch.device("cpu")), {}

    def three(part: LabelledLogits) -> dict[str, float]:
        mean = part.logits.double().mean(0)
        return {key: METRICS[key](mean, part.labels).item() for key in ("top1", "top5", "nll")}

    for name in sorted(COMMON):
        images, labels = split(12, COMMON.index(name)).images, torch.arange(6) % 3
        both = (SplitImages(Split(half, labels)) for half in images.split(6))
        cells[name] = dict(zip("24", (three(predict_images(models, half)) for half in both), strict=True))
    every = [cell for severities in cells.values() for cell in severities.values()]
    pooled = {key: sum(cell[key] for cell in every) / len(every) for key in ("top1", "top5", "nll")}
    found = {"folder": str(corrupted), "which": "last", "images": 6, "clean": three(Run.open(run).read_logits("last"))}
    found |= {"pooled": pooled, "mce": 1 - pooled["top1"], "corruptions": cells}
    assert main(["eval", run, "--corruptions", str(corrupted), "--json", *ON_CPU]) == 0
    assert capsys.readouterr().out == json.dumps({"runs": [run], "corrupted": found}, indent=2) + "\n"


def test_table_notes_when_there_is_no_mean_corruption_error(
    run: str, corrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name in ("labels.npy", "severities.txt", "fog.npy"):
        (tmp_path / name).write_bytes((corrupted / name).read_bytes())
    assert main(["eval", run, "--corruptions", str(tmp_path), *ON_CPU]) == 0
    assert "mean corruption error: not all of the 15 common corruptions were scored" in capsys.readouterr().out


def test_ctrl_c_prints_the_corruptions_scored_so_far(
    run: str, corrupted: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Those that are complete, in the order of their names."""
    logits, calls = Model.logits, list[int]()

    def stopped(model: Model, images: torch.Tensor, images_per_pass: int) -> torch.Tensor:
        calls.append(len(images))
        if len(calls) == 6:
            raise KeyboardInterrupt
        return logits(model, images, images_per_pass)

    monkeypatch.setattr(Model, "logits", stopped)
    assert main(["eval", run, "--corruptions", str(corrupted), "--json", *ON_CPU]) == 130
    out, err = capsys.readouterr()
    found = json.loads(out)["corrupted"]
    assert list(found["corruptions"]) == sorted(COMMON)[:2]
    cells = [cell["nll"] for severities in found["corruptions"].values() for cell in severities.values()]
    assert (found["pooled"]["nll"], found["mce"]) == (pytest.approx(sum(cells) / 4), None)
    assert err == "mixmo: interrupted\n"


def test_ood_table_agrees_with_json(run: str, other: str, capsys: pytest.CaptureFixture[str]):
    assert main(["eval", run, "--ood", other, "--json", *ON_CPU]) == 0
    found = json.loads(capsys.readouterr().out)["ood"]
    assert set(found["detectors"]) == set(DETECTORS)
    assert main(["eval", run, "--ood", other, *ON_CPU]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    for name, values in found["detectors"].items():
        assert rows[name] == [f"{100 * values[key]:.2f}" for key in ("auroc", "aupr", "fpr95")]
    assert text.startswith(f"{run}: OOD detection, {other} against cifar10\n")
    assert "last epoch, 6 images from inside, 2 from outside. AUPR: those from outside are the positives." in text


def test_corruptions_and_ood_can_be_scored_at_once(
    run: str, corrupted: Path, other: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["eval", run, "--corruptions", str(corrupted), "--ood", other, "--json", *ON_CPU]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["runs", "corrupted", "ood"]


def test_without_options_the_stored_logits_are_scored(run: str, capsys: pytest.CaptureFixture[str]):
    assert main(["eval", run, "--json", *ON_CPU]) == 0
    assert json.loads(capsys.readouterr().out)["last"] == Run.open(run).read_scores()["last"]


def test_bad_input_raises_an_error(run: str, corrupted: Path, tmp_path: Path, said: Callable[..., str]):
    nowhere = tmp_path / "nowhere"
    assert "labels.npy" in said("eval", run, "--corruptions", str(nowhere), *ON_CPU)
    assert "cifar1" in said("eval", run, "--ood", "cifar1", *ON_CPU)
    assert "trained on" in said("eval", run, "--ood", "cifar10", *ON_CPU)
    folder = ("--corruptions", str(corrupted))
    assert "which" in said("eval", run, *folder, "--which", "first", *ON_CPU)
    assert "exist" in said("eval", str(nowhere), *folder, *ON_CPU)


@pytest.mark.parametrize("option", [["--corruptions", "absent"], ["--ood", "cifar100"], ["--multiplex"], []])
def test_a_run_given_twice_raises_an_error(run: str, option: list[str], said: Callable[..., str]):
    assert "twice" in said("eval", run, f"{run}/", *option, *ON_CPU)


@pytest.mark.parametrize("option", ["--corruptions", "--ood"])
def test_an_option_given_twice_raises_an_error(run: str, option: str, said: Callable[..., str]):
    assert f"{option} is given twice" in said("eval", run, option, "here", f"{option}=there", *ON_CPU)


@pytest.mark.parametrize("option", ["--source weights", "--multiplex", "--on cifar10", "--ood cifar100"])
def test_data_sets_are_read_from_the_given_folder(run: str, option: str, tmp_path: Path, said: Callable[..., str]):
    assert f" {tmp_path}/cifar-10" in f" {said('eval', run, *option.split(), '--data', tmp_path, *ON_CPU)}"


@pytest.mark.parametrize("by", ["test", "validation", "validation test", "validation validation"])
def test_table_notes_whether_the_test_set_chose_the_best_epoch(
    run: str, by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Of an ensemble, if it chose that of one network."""
    chosen = by.split()
    paths = [tmp_path / str(i) for i in range(len(chosen))]
    for path, split in zip(paths, chosen, strict=True):
        shutil.copytree(run, path, ignore=shutil.ignore_patterns("SHA256SUMS"))
        scores = path / "scores.json"
        scores.write_text(json.dumps(json.loads(scores.read_text()) | {"best_by": split}))
    assert main(["eval", *map(str, paths)]) == 0
    assert ("best epoch chosen by the test set" in capsys.readouterr().out) == ("test" in chosen)


def test_one_epoch_can_be_scored_alone(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Also of a run with the logits of that epoch only."""
    path = tmp_path / "run"
    shutil.copytree(run, path)
    (path / "logits-best.safetensors").unlink()
    assert main(["eval", run, "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert main(["eval", str(path), "--which", "last", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["last"] == both["last"]
    assert "best" not in alone
    assert main(["eval", str(path), "--which", "last"]) == 0
    printed = capsys.readouterr().out
    assert "last" in printed
    assert "best" not in printed
    assert main(["eval", run, "--which", "best"]) == 0
    assert "between members, best epoch" in capsys.readouterr().out


@pytest.fixture
def bare(run: str, tmp_path: Path) -> Path:
    """A run as in results/: recipe, metrics and scores, without weights, logits and dataset.json."""
    (tmp_path / "bare").mkdir()
    for name in ("recipe.yaml", "environment.json", "metrics.jsonl", "scores.json"):
        shutil.copy(f"{run}/{name}", tmp_path / "bare")
    return tmp_path / "bare"


def test_stored_scores_are_printed_without_logits(run: str, bare: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["eval", run, "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert main(["eval", str(bare), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected | {"runs": [str(bare)], "stored": True}
    assert main(["eval", str(bare)]) == 0
    title, note, _, last, *_ = capsys.readouterr().out.splitlines()
    assert title == str(bare)
    assert "stored scores" in note
    assert f"{expected['last']['ensemble']['nll']:.4f}" in last.split()


def test_an_ensemble_without_logits_raises_an_error(run: str, bare: Path, said: Callable[..., str]):
    assert "logits" in said("eval", run, bare, *ON_CPU)


@pytest.mark.parametrize("option", ["--source weights", "--on digits", "--multiplex"])
def test_predicting_without_weights_names_the_missing_file(bare: Path, option: str, said: Callable[..., str]):
    assert "last.safetensors is missing" in said("eval", bare, *option.split(), *ON_CPU)


def test_scores_of_folders_in_results_are_printed(capsys: pytest.CaptureFixture[str]):
    for path in sorted((Path(__file__).parents[2] / "results").glob("*/*/")):
        assert main(["eval", str(path)]) == 0
        top1 = json.loads((path / "scores.json").read_text())["last"]["ensemble"]["top1"]
        assert f" {100 * top1:.2f} " in capsys.readouterr().out


def test_the_first_line_calls_several_runs_an_ensemble(run: str, capsys: pytest.CaptureFixture[str]):
    twin = shutil.copytree(run, f"{run}-twin", dirs_exist_ok=True)
    assert main(["eval", run, twin]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"ensemble of 2: {run} + {twin}"


def test_top5_of_three_classes_is_not_shown(run: str, capsys: pytest.CaptureFixture[str]):
    assert main(["eval", run]) == 0
    out = capsys.readouterr().out
    assert "Top1" in out
    assert "Top5" not in out
