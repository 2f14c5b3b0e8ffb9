"""mixmo eval --corruptions and --ood: tables, JSON and refusals. The scores themselves: test_robustness, test_ood."""

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
from mixmo.evaluation.saved_models import Model, open_model
from mixmo.metrics import DETECTORS, METRICS
from mixmo.metrics.logits import LabelledLogits
from mixmo.recipes import named
from mixmo.runs.directory import Run
from mixmo.utils.progress import Work

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


def test_corruptions_as_json_and_as_a_table(run: str, corrupted: Path, capsys: pytest.CaptureFixture[str]):
    twin = shutil.copytree(run, f"{run}-twin", dirs_exist_ok=True)
    assert main(["eval", run, twin, "--corruptions", str(corrupted), "--which", "best", "--json", *ON_CPU]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["runs"] == [run, twin]
    found = scores["corrupted"]
    assert (found["which"], found["images"], set(found["corruptions"])) == ("best", 6, set(COMMON))
    assert set(found["corruptions"]["fog"]) == {"2", "4"}
    # With its twin, a run answers as it does alone.
    assert main(["eval", run, "--corruptions", str(corrupted), "--which", "best", *ON_CPU]) == 0
    text = capsys.readouterr().out
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines() if "  " in line}
    fog = found["corruptions"]["fog"]
    assert rows["fog"][1:3] == [f"{100 * fog[severity]['top1']:.2f}" for severity in ("2", "4")]
    means = {key: (fog["2"][key] + fog["4"][key]) / 2 for key in ("top1", "top5", "nll")}
    told = {"fog": means, "all of them, pooled": found["pooled"], "clean test set": found["clean"]}
    for name, three in told.items():
        assert rows[name][-3:] == [f"{100 * three['top1']:.2f}", f"{100 * three['top5']:.2f}", f"{three['nll']:.4f}"]
    title, head = text.splitlines()[:2]
    assert title == f"{run} on {corrupted}"
    assert " ".join(head.split()) == "Top1 % at severity 2 4 mean Top5 % NLL"
    assert f"mean corruption error over the 15 common corruptions (unnormalised): {100 * found['mce']:.2f} %" in text
    assert "best epoch, 6 images a severity, severities 2, 4; no temperature" in text


def test_corruptions_to_the_letter(run: str, corrupted: Path, capsys: pytest.CaptureFixture[str]):
    """Every key of the JSON in its order; every value as the library gives it."""
    model, cells = open_model(Path(run), "last", torch.device("cpu")), {}

    def three(answers: LabelledLogits) -> dict[str, float]:
        mean = answers.logits.double().mean(0)
        return {key: METRICS[key](mean, answers.labels).item() for key in ("top1", "top5", "nll")}

    for name in sorted(COMMON):
        images, labels = split(12, COMMON.index(name)).images, torch.arange(6) % 3
        both = (Split(half, labels) for half in images.split(6))
        cells[name] = dict(zip("24", (three(model.answers(half, Work(""))) for half in both), strict=True))
    every = [cell for severities in cells.values() for cell in severities.values()]
    pooled = {key: sum(cell[key] for cell in every) / len(every) for key in ("top1", "top5", "nll")}
    found = {"folder": str(corrupted), "which": "last", "images": 6, "clean": three(Run.open(run).read_logits("last"))}
    found |= {"pooled": pooled, "mce": 1 - pooled["top1"], "corruptions": cells}
    assert main(["eval", run, "--corruptions", str(corrupted), "--json", *ON_CPU]) == 0
    assert capsys.readouterr().out == json.dumps({"runs": [run], "corrupted": found}, indent=2) + "\n"


def test_the_table_says_when_there_is_no_mean(
    run: str, corrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name in ("labels.npy", "severities.txt", "fog.npy"):
        (tmp_path / name).write_bytes((corrupted / name).read_bytes())
    assert main(["eval", run, "--corruptions", str(tmp_path), *ON_CPU]) == 0
    assert "mean corruption error: not all of the 15 common corruptions were scored" in capsys.readouterr().out


def test_what_was_scored_before_it_was_stopped_is_shown(
    run: str, corrupted: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """The corruptions that are complete, in an order by their names; the one under way is not."""
    answers = Model.answers
    asked: list[Split] = []

    def stopped(model: Model, split: Split, work: Work) -> LabelledLogits:
        asked.append(split)
        if len(asked) == 6:
            raise KeyboardInterrupt
        return answers(model, split, work)

    monkeypatch.setattr(Model, "answers", stopped)
    assert main(["eval", run, "--corruptions", str(corrupted), "--json", *ON_CPU]) == 130
    out, err = capsys.readouterr()
    found = json.loads(out)["corrupted"]
    assert list(found["corruptions"]) == sorted(COMMON)[:2]
    cells = [cell["nll"] for severities in found["corruptions"].values() for cell in severities.values()]
    assert (found["pooled"]["nll"], found["mce"]) == (pytest.approx(sum(cells) / 4), None)
    assert err == "mixmo: interrupted\n"


def test_ood_as_json_and_as_a_table(run: str, other: str, capsys: pytest.CaptureFixture[str]):
    assert main(["eval", run, "--ood", other, "--json", *ON_CPU]) == 0
    found = json.loads(capsys.readouterr().out)["ood"]
    assert set(found["detectors"]) == set(DETECTORS)
    assert main(["eval", run, "--ood", other, *ON_CPU]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    for name, values in found["detectors"].items():
        assert rows[name] == [f"{100 * values[key]:.2f}" for key in ("auroc", "aupr", "fpr95")]
    assert text.startswith(f"{run}: {other} told from cifar10\n")
    assert "last epoch, 6 images from inside and 2 from outside, the positives" in text


def test_both_at_once(run: str, corrupted: Path, other: str, capsys: pytest.CaptureFixture[str]):
    assert main(["eval", run, "--corruptions", str(corrupted), "--ood", other, "--json", *ON_CPU]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["runs", "corrupted", "ood"]


def test_neither_gives_the_plain_scores(run: str, capsys: pytest.CaptureFixture[str]):
    assert main(["eval", run, "--json", *ON_CPU]) == 0
    assert json.loads(capsys.readouterr().out)["last"] == Run.open(run).read_scores()["last"]


def test_refusals(run: str, corrupted: Path, tmp_path: Path, said: Callable[..., str]):
    nowhere = tmp_path / "nowhere"
    assert f"{nowhere}/labels.npy is missing" in said("eval", run, "--corruptions", str(nowhere), *ON_CPU)
    assert "unknown data set 'cifar1'" in said("eval", run, "--ood", "cifar1", *ON_CPU)
    assert f"--ood cifar10 is what {run} was trained on" in said("eval", run, "--ood", "cifar10", *ON_CPU)
    folder = ("--corruptions", str(corrupted))
    assert "which" in said("eval", run, *folder, "--which", "first", *ON_CPU)
    assert f"{nowhere} does not exist" in said("eval", str(nowhere), *folder, *ON_CPU)


@pytest.mark.parametrize("option", [["--corruptions", "absent"], ["--ood", "cifar100"], ["--multiplex"], []])
def test_a_run_given_twice_is_refused_whatever_is_scored(run: str, option: list[str], said: Callable[..., str]):
    assert "is given twice; an ensemble needs different runs" in said("eval", run, f"{run}/", *option, *ON_CPU)


@pytest.mark.parametrize("option", ["--corruptions", "--ood"])
def test_two_sets_at_a_time_are_refused(run: str, option: str, said: Callable[..., str]):
    sentence = said("eval", run, option, "here", f"{option}=there", *ON_CPU)
    assert f"{option} is given twice, and one is scored at a time" in sentence


@pytest.mark.parametrize("option", ["--source weights", "--multiplex", "--on cifar10", "--ood cifar100"])
def test_data_are_looked_for_where_they_are_said_to_be(run: str, option: str, tmp_path: Path, said: Callable[..., str]):
    assert f" {tmp_path}/cifar-10" in f" {said('eval', run, *option.split(), '--data', tmp_path, *ON_CPU)}"


@pytest.mark.parametrize("by", ["test", "validation", "validation test", "validation validation"])
def test_how_the_best_epoch_was_chosen(run: str, by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """By the test set, as soon as that chose the epoch of one network of an ensemble."""
    chosen = by.split()
    paths = [tmp_path / str(i) for i in range(len(chosen))]
    for path, split in zip(paths, chosen, strict=True):
        shutil.copytree(run, path, ignore=shutil.ignore_patterns("SHA256SUMS"))
        scores = path / "scores.json"
        scores.write_text(json.dumps(json.loads(scores.read_text()) | {"best_by": split}))
    assert main(["eval", *map(str, paths)]) == 0
    assert ("best epoch chosen by the test set" in capsys.readouterr().out) == ("test" in chosen)


def test_one_epoch_alone(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], said: Callable[..., str]):
    """Of a run of which only that epoch's logits were copied."""
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
    assert "logits-best.safetensors is missing" in said("eval", str(path), *ON_CPU)
