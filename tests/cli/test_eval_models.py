"""mixmo eval of saved networks, and on images of the user's choice."""

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
from mixmo.cli.tables import print_answers
from mixmo.data.decode import SkippedImages
from mixmo.data.types import Dataset
from mixmo.evaluation import multiplex
from mixmo.evaluation.labelled_images import Answered, CalibrationScores, ModelScores, Tempered
from mixmo.evaluation.saved_models import file_answers, labelled_files, open_model
from mixmo.models.metadata import About
from mixmo.runs.directory import Run

ON_CPU = ("--device", "cpu")
Eval = Callable[..., dict[str, object]]


@pytest.fixture
def scored(capsys: pytest.CaptureFixture[str]) -> Eval:
    """What a command prints as JSON."""

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
    """On what it says it was trained on; the same as a run on a data set that is named."""
    expected = runs[0].read_scores()["last"]
    for found in (scored(saved), scored(runs[0].path, "--on", "digits")):
        assert (found["on"], found["images"]) == ("digits", 360)
        for key, value in expected["ensemble"].items():
            assert found["ensemble"][key] == pytest.approx(value, rel=1e-3, abs=1e-5)
        assert found["diversity"]["agreement"] == pytest.approx(expected["diversity"]["agreement"])


def test_several_are_one_ensemble(runs: list[Run], saved: Path, scored: Eval) -> None:
    found = scored(saved, runs[1].path)
    logits = torch.cat([run.read_logits("last")[0] for run in runs[:2]])
    expected = mixmo.metrics.evaluate(logits, runs[0].read_logits("last")[1])
    assert len(found["members"]) == len(logits)
    assert found["ensemble"]["top1"] == pytest.approx(expected.ensemble.top1)
    assert found["ensemble"]["nll"] == pytest.approx(expected.ensemble.nll, rel=1e-4)


def test_files_of_the_user(runs: list[Run], saved: Path, files: Path, scored: Eval) -> None:
    logits, labels = runs[0].read_logits("last")
    expected = mixmo.metrics.evaluate(logits[:, :60], labels[:60])
    for where in (files / "images", files / "list.csv"):
        found = scored(saved, "--on", where)
        assert found["images"] == 60
        assert found["ensemble"]["top1"] == pytest.approx(expected.ensemble.top1)
        assert found["ensemble"]["nll"] == pytest.approx(expected.ensemble.nll, rel=1e-4)


def test_a_folder_of_which_only_the_test_images_are_read(
    runs: list[Run], saved: Path, files: Path, tmp_path: Path, scored: Eval, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory or streamed: without the one that cannot be read, and without a look at the train images."""
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


def test_whether_the_calibration_holds(
    runs: list[Run], tmp_path: Path, scored: Eval, capsys: pytest.CaptureFixture[str]
) -> None:
    logits, labels = runs[0].read_logits("last")
    calibration = calibrate(logits[:, ::2], labels[::2], level=0.8, risk=0.8)
    mixmo.save_pretrained(mixmo.load(runs[0].path), tmp_path / "net", calibration=calibration)
    found = scored(tmp_path / "net")
    mean, right = logits.double().mean(0), logits.mean(0).argmax(1) == labels
    nll = torch.nn.functional.cross_entropy(mean / calibration.temperature, labels)
    assert found["calibrated"]["nll"] == pytest.approx(nll.item(), rel=1e-4)
    inside = calibration.conformal.sets(mean)
    held = [row[label].item() for row, label in zip(inside, labels, strict=True)]
    assert found["sets"]["held"] == pytest.approx(sum(held) / 360, abs=0.01)
    assert found["sets"]["size"] == pytest.approx(inside.sum().item() / 360, abs=0.05)
    answered = mean.softmax(1).amax(1) > calibration.selective.threshold
    assert answered.any()
    assert found["answered"]["share"] == pytest.approx(answered.double().mean().item(), abs=0.01)
    assert found["answered"]["wrong"] == pytest.approx(1 - right[answered].double().mean().item(), abs=0.01)
    assert "calibrated" not in scored(tmp_path / "net", runs[1].path)  # it is that of one network
    assert main(["eval", str(tmp_path / "net"), *ON_CPU]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "net on digits, 360 images" in printed
    fitted, sets, answers = found["calibrated"], found["sets"], found["answered"]
    nll, ece, brier = (f"{fitted[name]:.4f}" for name in ("nll", "ece", "brier"))
    assert f"at its temperature {calibration.temperature:.4g}: NLL {nll}, ECE {ece}, Brier {brier} its sets" in printed
    assert f"hold the true class for {100 * sets['held']:.2f} % (asked for 80 %), with {sets['size']:.2f} cl" in printed
    assert f"it answers {100 * answers['share']:.2f} % and abstains elsewhere; of these " in printed
    assert f"of these {100 * answers['wrong']:.2f} % are wrong (asked for 80 % at most)" in printed
    fitted = CalibrationScores(Tempered(1.0, nll=0.5, ece=0.1, brier=0.2), None, Answered(0.05, share=0.0, wrong=None))
    print_answers(ModelScores(["net"], "digits", 360, mixmo.metrics.evaluate(logits, labels), fitted), "net")
    assert "it answers 0.00 % and abstains elsewhere (asked for 5 % at most)" in capsys.readouterr().out


def test_other_images_told_apart(
    runs: list[Run], saved: Path, tmp_path: Path, scored: Eval, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by the run that was saved; of which epoch it is, a saved network does not say."""
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
    assert capsys.readouterr().out.splitlines()[-1].startswith("360 images from inside and 3 from outside")


@pytest.fixture(scope="module")
def own(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network trained on images that no data set here has, of which it sees the middle."""
    net = mixmo.load(runs[0].path)
    assert net.about is not None
    net.about = dataclasses.replace(net.about, dataset="birds", resize=12)
    path = tmp_path_factory.mktemp("own") / "net"
    mixmo.save_pretrained(net, path)
    return path


def test_files_of_the_user_by_several_a_pass(
    own: Path, files: Path, scored: Eval, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one, as without --multiplex; with two, as by hand, in the order that was drawn."""
    monkeypatch.setattr(multiplex, "_timed", lambda call: (call(), 1.0))
    for where in (files / "images", files / "list.csv"):
        first, second = scored(own, "--on", where, "--multiplex")["multiplexed"]["rows"]
        alone = scored(own, "--on", where)["ensemble"]
        for name in ("top1", "nll", "brier", "ece"):
            assert first[name] == pytest.approx(alone[name], abs=1e-6)
        parts = list(labelled_files(open_model(own, "last", torch.device("cpu")), where, "reading"))
        images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
        by_hand = mixmo.predict(mixmo.load(own), images[order], images_per_pass=2)
        assert second["top1"] == pytest.approx((by_hand.labels == labels[order]).double().mean().item())
    of_the_set = scored(own, "--on", "digits", "--multiplex")["multiplexed"]
    assert of_the_set["images"] == 360


def test_other_images_told_from_files_of_the_user(own: Path, files: Path, scored: Eval) -> None:
    """Those of the files as without --ood, and digits from digits by chance."""
    found = scored(own, "--on", files / "images", "--ood", "digits")["ood"]
    assert (found["inside"], found["inside_images"], found["outside_images"]) == (str(files / "images"), 60, 360)
    model = open_model(own, "last", torch.device("cpu"))
    inside = file_answers(model, files / "images", "scoring").logits.mean(0).softmax(1).amax(1)
    digits = mixmo.data.load("digits").test.images
    outside = model(model.prepared(digits)).probs.amax(1)
    positive = torch.cat((torch.zeros(60), torch.ones(360)))
    expected = roc_auc_score(positive, -torch.cat((inside, outside)))
    assert found["detectors"]["max_probability"]["auroc"] == pytest.approx(expected, abs=1e-6)


def test_an_ensemble_of_which_the_files_do_not_show_that_the_classes_differ(
    saved: Path, files: Path, tmp_path: Path, said: Callable[..., str]
) -> None:
    """Two of them change places, and no file is of either: the labels are the same, the answers are not."""
    net = mixmo.load(saved)
    assert net.about is not None
    mixmo.save_pretrained(net, tmp_path / "turned", about=dataclasses.replace(net.about, classes=tuple("0123456798")))
    lines = (files / "list.csv").read_text().splitlines()
    few = files / "few.csv"
    few.write_text("\n".join(line for line in lines if not line.endswith((",8", ",9"))))
    for asked in ((), ("--ood", "digits")):
        sentence = said("eval", saved, tmp_path / "turned", "--on", few, *asked, *ON_CPU)
        assert f"{tmp_path / 'turned'} knows other classes than {saved}; an ensemble needs the same" in sentence


def test_a_network_of_a_data_set_that_is_not_here(own: Path, said: Callable[..., str]) -> None:
    for asked in ((), ("--multiplex",), ("--ood", "digits")):
        assert f"{own} was trained on birds, which is no data set here (" in said("eval", own, *asked, *ON_CPU)


def test_refusals(saved: Path, files: Path, runs: list[Run], tmp_path: Path, said: Callable[..., str]) -> None:
    assert f"{tmp_path / 'no'} does not exist" in said("eval", tmp_path / "no", *ON_CPU)
    assert "is no data set (" in said("eval", saved, "--on", tmp_path / "no", *ON_CPU)
    assert f"--ood digits is what {saved} was trained on" in said("eval", saved, "--ood", "digits", *ON_CPU)
    assert "--ood digits is what --on names" in said("eval", saved, "--ood", "digits", "--on", "digits", *ON_CPU)
    both = ("--on", "digits", "--corruptions", tmp_path)
    assert "--corruptions brings its own labelled images" in said("eval", runs[0].path, *both, *ON_CPU)
    assert "is given twice" in said("eval", saved, saved, *ON_CPU)
    about = About((1, 8, 8), (0.5,), (0.5,), classes=tuple("abcdefghij"))
    mixmo.save_pretrained(mixmo.create("wrn10_1", classes=10, channels=1), tmp_path / "letters", about=about)
    sentence = said("eval", saved, tmp_path / "letters", "--on", "digits", *ON_CPU)
    assert f"{tmp_path / 'letters'} knows other classes than {saved}; an ensemble needs the same" in sentence
    (files / "images" / "zebra").mkdir(exist_ok=True)
    Image.new("L", (8, 8)).save(files / "images" / "zebra" / "1.png")
    sentence = said("eval", saved, "--on", files / "images", *ON_CPU)
    assert "classes that the model does not know: zebra" in sentence


def test_networks_of_one_run(tmp_path: Path, scored: Eval, said: Callable[..., str]) -> None:
    """All of them are members; one of them counts once, and none is looked for elsewhere."""
    both = tmp_path / "both"
    small = ("--epochs", "1", "--width", "1", "--batch_size", "256", "--quiet", "true", *ON_CPU)
    assert main(["train", "digits/de2", *small, "--out", str(both)]) == 0
    assert len(scored(both, "--on", "digits")["members"]) == 2
    assert f"{both / '0'} is given twice" in said("eval", both, both / "0", "--on", "digits", *ON_CPU)
    shutil.rmtree(both / "1")
    assert f"{both / '1'} is no run directory" in said("eval", both, "--on", "digits", *ON_CPU)


def test_a_folder_of_the_name_of_the_data_set(
    saved: Path, tmp_path: Path, scored: Eval, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert scored(saved)["images"] == 360


def test_randomised_sets_are_the_same_each_time(runs: list[Run], tmp_path: Path, scored: Eval) -> None:
    """And the caller's random numbers go on as if nobody had drawn any."""
    logits, labels = runs[0].read_logits("last")
    calibration = calibrate(logits, labels, method="aps", randomised=True)
    mixmo.save_pretrained(mixmo.load(runs[0].path), tmp_path / "net", calibration=calibration)
    before = torch.get_rng_state()
    assert scored(tmp_path / "net")["sets"] == scored(tmp_path / "net")["sets"]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("classes", "size", "on", "says"),
    [
        (10, (1, 8, 8), "files", "net does not name its classes; save it with about="),
        (12, (1, 8, 8), "digits", "answers for 12 classes, which it does not name, and digits has 10"),
        (10, (1, 8, 16), "digits", "sees 8 x 16 pixels, and images are cut to squares only"),
    ],
)
def test_networks_that_say_too_little(
    classes: int, size: tuple[int, int, int], on: str, says: str, files: Path, tmp_path: Path, said: Callable[..., str]
) -> None:
    net = mixmo.create("wrn10_1", classes=classes, members=2, channels=1)
    mixmo.save_pretrained(net, tmp_path / "net", about=About(size, (0.5,), (0.5,)))
    assert says in said("eval", tmp_path / "net", "--on", files / "images" if on == "files" else on, *ON_CPU)


def test_one_image(saved: Path, files: Path, tmp_path: Path, scored: Eval, said: Callable[..., str]) -> None:
    shutil.copytree(files / "images" / "6", tmp_path / "one" / "6")
    for extra in sorted((tmp_path / "one" / "6").iterdir())[1:]:
        extra.unlink()
    assert "has one image, and scores need two at least" in said("eval", saved, "--on", tmp_path / "one", *ON_CPU)
    Image.new("L", (8, 8)).save(tmp_path / "one" / "6" / "more.png")
    assert scored(saved, "--on", tmp_path / "one")["images"] == 2


def test_a_network_that_does_not_say_what_it_was_trained_on(tmp_path: Path, said: Callable[..., str]) -> None:
    net = mixmo.create("wrn10_1", classes=10, members=2, channels=1)
    mixmo.save_pretrained(net, tmp_path / "net", about=About((1, 8, 8), (0.5,), (0.5,)))
    assert "give labelled images with --on" in said("eval", tmp_path / "net", *ON_CPU)
