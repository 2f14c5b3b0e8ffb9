"""mixmo eval of saved networks, and on labelled images of the user (--on)."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

import mixmo
from mixmo.calibration.posthoc import calibrate
from mixmo.cli.app import main
from mixmo.cli.tables import print_model_scores
from mixmo.data.decode import SkippedImages
from mixmo.data.types import Dataset
from mixmo.evaluation import multiplex
from mixmo.evaluation.images import FileImages
from mixmo.evaluation.model_scores import CalibrationScores, ModelScores, SelectiveScores, TemperatureScores
from mixmo.evaluation.models import open_models
from mixmo.evaluation.pipeline import predict_images
from mixmo.models.metadata import About
from mixmo.runs.directory import Run

ON_CPU = ("--device", "cpu")
Eval = Callable[..., dict[str, object]]


@pytest.fixture
def scored(capsys: pytest.CaptureFixture[str]) -> Eval:
    """Run a command and parse the JSON it prints."""

    def scored(*arguments: object) -> dict[str, object]:
        capsys.readouterr()
        assert main(["eval", *map(str, arguments), "--json", *ON_CPU]) == 0
        return json.loads(capsys.readouterr().out)

    return scored


@pytest.fixture(scope="module")
def saved(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "saved"
    mixmo.save_pretrained(mixmo.load(runs[0].path), path)
    return path


@pytest.fixture(scope="module")
def files(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 60 test images, in class folders; and a CSV that lists them."""
    folder = tmp_path_factory.mktemp("digits")
    lines = ["path,label"]
    for number, label in enumerate(digits.test.labels[:60].tolist()):
        path = folder / "images" / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.test.images[number, ..., 0].numpy()).save(path)
        lines.append(f"{path.relative_to(folder)},{label}")
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_saved_network_scores_as_its_run_did(runs: list[Run], saved: Path, scored: Eval) -> None:
    """On the data set it was trained on, or on the same given by name."""
    expected = runs[0].read_scores()["last"]
    for found in (scored(saved), scored(runs[0].path, "--on", "digits")):
        assert (found["on"], found["images"]) == ("digits", 360)
        for key, value in expected["ensemble"].items():
            assert found["ensemble"][key] == pytest.approx(value, rel=1e-3, abs=1e-5)
        assert found["diversity"]["agreement"] == pytest.approx(expected["diversity"]["agreement"])


def test_several_models_are_one_ensemble(runs: list[Run], saved: Path, scored: Eval) -> None:
    found = scored(saved, runs[1].path)
    logits = torch.cat([run.read_logits("last")[0] for run in runs[:2]])
    expected = mixmo.metrics.evaluate(logits, runs[0].read_logits("last")[1])
    assert len(found["members"]) == len(logits)
    assert found["ensemble"]["top1"] == pytest.approx(expected.ensemble.top1)
    assert found["ensemble"]["nll"] == pytest.approx(expected.ensemble.nll, rel=1e-4)


def test_files_score_as_the_images_they_hold(runs: list[Run], saved: Path, files: Path, scored: Eval) -> None:
    logits, labels = runs[0].read_logits("last")
    expected = mixmo.metrics.evaluate(logits[:, :60], labels[:60])
    for where in (files / "images", files / "list.csv"):
        found = scored(saved, "--on", where)
        assert found["images"] == 60
        assert found["ensemble"]["top1"] == pytest.approx(expected.ensemble.top1)
        assert found["ensemble"]["nll"] == pytest.approx(expected.ensemble.nll, rel=1e-4)


def test_only_the_test_images_of_a_folder_are_read(
    runs: list[Run], saved: Path, files: Path, tmp_path: Path, scored: Eval, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory or streamed, without the one that cannot be read."""
    for label in range(10):
        (tmp_path / "train" / str(label)).mkdir(parents=True)
        (tmp_path / "train" / str(label) / "1.png").write_bytes(b"not an image")
    shutil.copytree(files / "images", tmp_path / "test")
    logits, labels = runs[0].read_logits("last")
    order = [int(Path(path).stem) for path in sorted(map(str, tmp_path.glob("test/*/*.png")))]
    expected = mixmo.metrics.evaluate(logits[:, order], labels[order])
    (tmp_path / "test" / "6" / "0.png").write_bytes(b"not an image")
    for room in (10**9, 0):
        monkeypatch.setattr(mixmo.data, "room", lambda device, room=room: room)
        with pytest.warns(SkippedImages, match=r"1 of the 61 images of test-8 in .*6/0.png"):
            found = scored(saved, "--on", f"folder:{tmp_path}@8")
        assert found["images"] == 60
        assert found["ensemble"]["top1"] == pytest.approx(expected.ensemble.top1)
        assert found["ensemble"]["nll"] == pytest.approx(expected.ensemble.nll, rel=1e-4)
        assert [path.name.rpartition("-")[0] for path in (tmp_path / ".mixmo-cache").iterdir()] == ["test-8"]


def test_scores_of_a_calibration_agree_with_plain_loops(
    runs: list[Run], tmp_path: Path, scored: Eval, capsys: pytest.CaptureFixture[str]
) -> None:
    logits, labels = runs[0].read_logits("last")
    calibration = calibrate(logits[:, ::2], labels[::2], level=0.8, risk=0.8)
    mixmo.save_pretrained(mixmo.load(runs[0].path), tmp_path / "net", calibration=calibration)
    found = scored(tmp_path / "net")
    mean, right = logits.double().mean(0), logits.mean(0).argmax(1) == labels
    nll = torch.nn.functional.cross_entropy(mean / calibration.temperature, labels)
    assert found["temperature"]["nll"] == pytest.approx(nll.item(), rel=1e-4)
    inside = calibration.conformal.sets(mean)
    held = [row[label].item() for row, label in zip(inside, labels, strict=True)]
    assert found["conformal"]["held"] == pytest.approx(sum(held) / 360, abs=0.01)
    assert found["conformal"]["size"] == pytest.approx(inside.sum().item() / 360, abs=0.05)
    answered = mean.softmax(1).amax(1) > calibration.selective.threshold
    assert answered.any()
    assert found["selective"]["share"] == pytest.approx(answered.double().mean().item(), abs=0.01)
    assert found["selective"]["wrong"] == pytest.approx(1 - right[answered].double().mean().item(), abs=0.01)
    assert "temperature" not in scored(tmp_path / "net", runs[1].path)  # it is that of one network
    assert main(["eval", str(tmp_path / "net"), *ON_CPU]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "net on digits, 360 images" in printed
    fitted, sets, answers = found["temperature"], found["conformal"], found["selective"]
    nll, ece, brier = (f"{fitted[name]:.4f}" for name in ("nll", "ece", "brier"))
    assert f"at temperature {calibration.temperature:.4g}: NLL {nll}, ECE {ece}, Brier {brier}" in printed
    assert f"coverage {100 * sets['held']:.2f} % (target 80 %), {sets['size']:.2f} classes on average" in printed
    assert f"prediction: coverage {100 * answers['share']:.2f} %, selective risk" in printed
    assert f"selective risk {100 * answers['wrong']:.2f} % (maximum 80 %)" in printed
    fitted = CalibrationScores(TemperatureScores(1.0, 0.5, 0.1, 0.2), None, SelectiveScores(0.05, 0.0, wrong=None))
    print_model_scores(ModelScores(["net"], "digits", 360, mixmo.metrics.evaluate(logits, labels), fitted), "net")
    assert "coverage 0.00 %, selective risk - (maximum 5 %)" in capsys.readouterr().out


def test_ood_scores_of_a_saved_network_are_those_of_its_run(
    runs: list[Run], saved: Path, tmp_path: Path, scored: Eval, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("train", "test"):
        for shade in (50, 150, 250):
            (tmp_path / part / f"{shade}").mkdir(parents=True)
            Image.new("RGB", (9, 9), (shade, 30, 30)).save(tmp_path / part / f"{shade}" / "1.png")
    other = f"folder:{tmp_path}@9"
    found, expected = scored(saved, "--ood", other), scored(runs[0].path, "--ood", other)
    assert (found["models"], expected["runs"]) == ([str(saved)], [str(runs[0].path)])
    bare = shutil.copytree(runs[0].path, tmp_path / "run", ignore=shutil.ignore_patterns("logits-*"))
    assert scored(bare, "--ood", other, "--source", "weights")["ood"] == expected["ood"]
    for name, values in expected["ood"]["detectors"].items():
        assert found["ood"]["detectors"][name] == pytest.approx(values, abs=1e-3)
    assert main(["eval", str(saved), "--ood", other, *ON_CPU]) == 0
    assert capsys.readouterr().out.count("360 images from inside, 3 from outside") == 1


@pytest.fixture(scope="module")
def own(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network trained on an unknown data set, of whose images it reads the centre."""
    net = mixmo.load(runs[0].path)
    assert net.about is not None
    net.about = dataclasses.replace(net.about, dataset="birds", resize=12)
    path = tmp_path_factory.mktemp("own") / "net"
    mixmo.save_pretrained(net, path)
    return path


def test_multiplexed_scores_of_files_agree_with_predict(
    own: Path, files: Path, scored: Eval, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One image per pass scores as without --multiplex; two as by hand, in the drawn order."""
    monkeypatch.setattr(multiplex, "_timed", lambda call: (call(), 1.0))
    for where in (files / "images", files / "list.csv"):
        first, second = scored(own, "--on", where, "--multiplex")["multiplexed"]["rows"]
        alone = scored(own, "--on", where)["ensemble"]
        for name in ("top1", "nll", "brier", "ece"):
            assert first[name] == pytest.approx(alone[name], abs=1e-6)
        images, labels = FileImages(where).in_memory(open_models([own], "last", torch.device("cpu"))[0]).split
        order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
        by_hand = mixmo.predict(mixmo.load(own), images[order], images_per_pass=2)
        assert second["top1"] == pytest.approx((by_hand.labels == labels[order]).double().mean().item())
    of_the_set = scored(own, "--on", "digits", "--multiplex")["multiplexed"]
    assert of_the_set["images"] == 360


def test_ood_scores_with_files_as_the_inside(own: Path, files: Path, scored: Eval) -> None:
    found = scored(own, "--on", files / "images", "--ood", "digits")["ood"]
    assert (found["inside"], found["inside_images"], found["outside_images"]) == (str(files / "images"), 60, 360)
    (model,) = open_models([own], "last", torch.device("cpu"))
    inside = predict_images([model], FileImages(files / "images")).logits.mean(0).softmax(1).amax(1)
    digits = mixmo.data.load("digits").test.images
    outside = model.logits(model.prepare(digits)).mean(0).softmax(1).amax(1)
    positive = torch.cat((torch.zeros(60), torch.ones(360)))
    expected = roc_auc_score(positive, -torch.cat((inside, outside)))
    assert found["detectors"]["max_probability"]["auroc"] == pytest.approx(expected, abs=1e-6)


def test_models_of_different_classes_are_no_ensemble(
    saved: Path, files: Path, tmp_path: Path, said: Callable[..., str]
) -> None:
    """Even if two classes change places of which there is no file, so that the labels are equal."""
    net = mixmo.load(saved)
    assert net.about is not None
    mixmo.save_pretrained(net, tmp_path / "turned", about=dataclasses.replace(net.about, classes=tuple("0123456798")))
    lines = (files / "list.csv").read_text().splitlines()
    few = files / "few.csv"
    few.write_text("\n".join(line for line in lines if not line.endswith((",8", ",9"))))
    for asked in ((), ("--ood", "digits")):
        assert "other classes" in said("eval", saved, tmp_path / "turned", "--on", few, *asked, *ON_CPU)


def test_a_network_of_an_unknown_data_set_raises_an_error(own: Path, said: Callable[..., str]) -> None:
    for asked in ((), ("--multiplex",), ("--ood", "digits")):
        assert "birds" in said("eval", own, *asked, *ON_CPU)


def test_bad_input_raises_an_error(
    saved: Path, files: Path, runs: list[Run], tmp_path: Path, said: Callable[..., str]
) -> None:
    assert "exist" in said("eval", tmp_path / "no", *ON_CPU)
    assert "data set" in said("eval", saved, "--on", tmp_path / "no", *ON_CPU)
    assert "trained on" in said("eval", saved, "--ood", "digits", *ON_CPU)
    assert "--on names" in said("eval", saved, "--ood", "digits", "--on", "digits", *ON_CPU)
    both = ("--on", "digits", "--corruptions", tmp_path)
    assert "--corruptions" in said("eval", runs[0].path, *both, *ON_CPU)
    assert "twice" in said("eval", saved, saved, *ON_CPU)
    about = About((1, 8, 8), (0.5,), (0.5,), classes=tuple("abcdefghij"))
    mixmo.save_pretrained(mixmo.create("wrn10_1", classes=10, channels=1), tmp_path / "letters", about=about)
    assert "other classes" in said("eval", saved, tmp_path / "letters", "--on", "digits", *ON_CPU)
    (files / "images" / "zebra").mkdir(exist_ok=True)
    Image.new("L", (8, 8)).save(files / "images" / "zebra" / "1.png")
    assert "zebra" in said("eval", saved, "--on", files / "images", *ON_CPU)


def test_all_networks_of_a_run_are_members(tmp_path: Path, scored: Eval, said: Callable[..., str]) -> None:
    both = tmp_path / "both"
    small = ("--epochs", "1", "--width", "1", "--batch_size", "256", "--quiet", "true", *ON_CPU)
    assert main(["train", "digits/de2", *small, "--out", str(both)]) == 0
    assert len(scored(both, "--on", "digits")["members"]) == 2
    assert "twice" in said("eval", both, both / "0", "--on", "digits", *ON_CPU)
    shutil.rmtree(both / "1")
    assert "is not a run directory" in said("eval", both, "--on", "digits", *ON_CPU)


def test_a_folder_named_as_the_data_set_is_not_read(
    saved: Path, tmp_path: Path, scored: Eval, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert scored(saved)["images"] == 360


def test_randomised_sets_are_the_same_each_time(runs: list[Run], tmp_path: Path, scored: Eval) -> None:
    """And the caller's random state is left as it was."""
    logits, labels = runs[0].read_logits("last")
    calibration = calibrate(logits, labels, method="aps", randomised=True)
    mixmo.save_pretrained(mixmo.load(runs[0].path), tmp_path / "net", calibration=calibration)
    before = torch.get_rng_state()
    assert scored(tmp_path / "net")["conformal"] == scored(tmp_path / "net")["conformal"]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("classes", "size", "on", "says"),
    [
        (10, (1, 8, 8), "files", "name its classes"),
        (10, (1, 8, 16), "digits", "8 x 16"),
    ],
)
def test_networks_with_too_little_metadata_raise_an_error(
    classes: int, size: tuple[int, int, int], on: str, says: str, files: Path, tmp_path: Path, said: Callable[..., str]
) -> None:
    net = mixmo.create("wrn10_1", classes=classes, members=2, channels=1)
    mixmo.save_pretrained(net, tmp_path / "net", about=About(size, (0.5,), (0.5,)))
    assert says in said("eval", tmp_path / "net", "--on", files / "images" if on == "files" else on, *ON_CPU)


def test_one_image_is_too_few(saved: Path, files: Path, tmp_path: Path, scored: Eval, said: Callable[..., str]) -> None:
    shutil.copytree(files / "images" / "6", tmp_path / "one" / "6")
    for extra in sorted((tmp_path / "one" / "6").iterdir())[1:]:
        extra.unlink()
    assert "one sample" in said("eval", saved, "--on", tmp_path / "one", *ON_CPU)
    Image.new("L", (8, 8)).save(tmp_path / "one" / "6" / "more.png")
    assert scored(saved, "--on", tmp_path / "one")["images"] == 2


def test_a_network_without_the_name_of_its_data_set_raises_an_error(tmp_path: Path, said: Callable[..., str]) -> None:
    net = mixmo.create("wrn10_1", classes=10, members=2, channels=1)
    mixmo.save_pretrained(net, tmp_path / "net", about=About((1, 8, 8), (0.5,), (0.5,)))
    assert "--on" in said("eval", tmp_path / "net", *ON_CPU)
