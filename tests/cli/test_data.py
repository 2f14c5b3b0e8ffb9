"""mixmo data get, check and corrupt: what they print and with which status they end."""

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from faults.hostile import png
from helpers import assert_same, noise
from mixmo import data
from mixmo.cli.app import main
from mixmo.data import corrupted
from mixmo.data.corruptions import style
from mixmo.data.download import SOURCES, Source
from mixmo.data.types import Dataset, Split
from mixmo.engine import Runtime, train
from mixmo.evaluation.run_scores import score_runs
from mixmo.recipes import named
from mixmo.runs.directory import Run


def test_data_prints_its_usage(capsys: pytest.CaptureFixture[str]):
    for arguments in (["data"], ["data", "--help"]):
        assert main(arguments) == 0
        text = capsys.readouterr().out
        assert text.startswith("usage: mixmo data VERB")
        assert all(f"  {verb} " in text for verb in ("get", "check", "corrupt"))


@pytest.mark.parametrize("verb", ["get", "check", "corrupt"])
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]):
    assert main(["data", verb, "--help"]) == 0
    assert f"usage: mixmo data {verb}" in capsys.readouterr().out


def test_an_unknown_verb_suggests_the_nearest(said: Callable[..., str]):
    assert "unknown data VERB 'fetch'" in said("data", "fetch", "cifar10")
    assert "did you mean 'check'?" in said("data", "chek", "cifar10")


def test_get_needs_to(said: Callable[..., str]):
    assert "to" in said("data", "get", "cifar10")
    assert "unknown option '--too'; did you mean '--to'?" in said("data", "get", "cifar10", "--too", "x")


def test_get_uses_an_archive_put_there_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: Callable[..., str]
):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(content.getvalue())
    digest = hashlib.md5(content.getvalue()).hexdigest()
    url = "http://127.0.0.1:9/cifar-10-python.tar.gz"
    monkeypatch.setitem(SOURCES, "cifar10", Source(url, digest, "cifar-10-batches-py", 5, 1000))
    assert main(["data", "get", "cifar10", "--to", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'cifar-10-batches-py'}\n"
    assert (tmp_path / "cifar-10-batches-py/data_batch_1").read_bytes() == b"abc"
    assert "exists already" in said("data", "get", "cifar10", "--to", str(tmp_path))


def test_get_of_an_unknown_name_suggests_the_nearest(said: Callable[..., str], tmp_path: Path):
    err = said("data", "get", "cifar", "--to", str(tmp_path))
    assert "did you mean 'cifar10'?" in err


def test_check_prints_what_it_found(capsys: pytest.CaptureFixture[str]):
    assert main(["data", "check", "digits"]) == 0
    out, err = capsys.readouterr()
    assert out == "digits: 1,437 train and 360 test images of 8x8x1, 10 classes\n"
    assert err == ""


def test_check_without_a_name_checks_what_is_there(
    tmp_path: Path, small_cifar: None, capsys: pytest.CaptureFixture[str], said: Callable[..., str]
):
    assert f"there is no data set in {tmp_path}" in said("data", "check", "--data", tmp_path)
    corrupt = ["data", "corrupt", "cifar100", "--to", str(tmp_path), "--device", "cpu", "--severities", "1"]
    assert main(corrupt) == 0
    capsys.readouterr()
    assert main(["data", "check", "--data", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "cifar100-c-style: 19 corruptions at severities 1, 2 images each\n"
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert main(["data", "check", "--data", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == "cifar100-c-style: 19 corruptions at severities 1, 2 images each\n"
    assert "cifar-10-batches-py" in err


def test_check_prints_one_line_per_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("train", "test"):
        (tmp_path / "cifar-100-python" / name).write_bytes(b"")
    assert main(["data", "check", "cifar100", "--data", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 3  # two checksums, and what the reader says of the first file
    for line in lines:
        assert line.startswith(f"mixmo: {tmp_path / 'cifar-100-python'}")


def test_check_uses_mixmo_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]):
    monkeypatch.setenv("MIXMO_DATA", str(tmp_path / "here"))
    assert f"needs {tmp_path / 'here' / 'CIFAR-10-C'}" in said("data", "check", "cifar10-c")
    assert "unknown data set 'cifr10'; did you mean 'cifar10'?" in said("data", "check", "cifr10")


@pytest.fixture
def small_cifar(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(0, 256, (2, 32, 32, 3), generator=torch.Generator().manual_seed(0)).byte()
    split = Split(images, torch.tensor([0, 1]))
    dataset = Dataset("cifar100", split, split, ("a", "b"), (0.5,) * 3, (0.2,) * 3)
    monkeypatch.setattr(data, "load", lambda name, root, train: dataset)
    monkeypatch.setattr(corrupted, "TEST_IMAGES", 2)


def test_corrupt_writes_what_check_accepts(
    tmp_path: Path, small_cifar: None, capsys: pytest.CaptureFixture[str], said: Callable[..., str]
):
    corrupt = ["data", "corrupt", "cifar100", "--to", str(tmp_path), "--device", "cpu", "--severities", "1", "5"]
    assert main([*corrupt, "--seed", "3"]) == 0
    folder = tmp_path / "cifar100-c-style"
    out, _ = capsys.readouterr()
    assert out.startswith(f"{folder} (")
    assert "with seed 3" in (folder / "README.txt").read_text()
    assert main(["data", "check", "cifar100-c-style", "--data", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "cifar100-c-style: 19 corruptions at severities 1, 5, 2 images each\n"
    assert f"{folder} exists already" in said(*corrupt)


def test_corrupt_rejects_wrong_arguments(tmp_path: Path, small_cifar: None, said: Callable[..., str]):
    to = ("--to", str(tmp_path))
    assert "severities" in said("data", "corrupt", "cifar100", *to, "--severities", "0")
    assert "severities" in said("data", "corrupt", "cifar100", *to, "--severities", "high")
    assert "unknown data set to corrupt 'digits'" in said("data", "corrupt", "digits", *to)
    assert "device 'gpu' cannot be used" in said("data", "corrupt", "cifar100", *to, "--device", "gpu")
    assert "seed" in said("data", "corrupt", "cifar100", *to, "--seed", "-1")
    assert list(tmp_path.iterdir()) == []


def test_corrupt_names_missing_data(tmp_path: Path, said: Callable[..., str]):
    arguments = ("data", "corrupt", "cifar10", "--to", str(tmp_path / "to"), "--data", str(tmp_path / "empty"))
    assert f"needs {tmp_path}/empty/cifar-10-batches-py, which does not exist" in said(*arguments)
    assert style.STYLES["cifar10"] not in [path.name for path in tmp_path.rglob("*")]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with photos/cat and photos/dog, ten images each."""
    noise(tmp_path, {"photos": 10}, ("cat", "dog"), (9, 9, 3))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "photos"


TRAIN = [
    "train",
    "digits/vanilla",
    "--dataset",
    "folder:photos@8",
    "--width",
    "1",
    "--batch_size",
    "4",
    "--epochs",
    "2",
]


def test_a_folder_without_a_split_trains_with_val(photos: Path, said: Callable[..., str]):
    assert "--val 0.2" in said(*TRAIN, "--out", "run")
    assert main([*TRAIN, "--val", "0.2", "--out", "run"]) == 0
    run = Run.open(Path("run"))
    assert run.read_dataset()["images"] == [16, 4]
    stored, again = (score_runs([run], source).to_dict() for source in ("logits", "weights"))
    assert again == stored  # the same test images
    assert main(["eval", "run", "--source", "weights"]) == 0


def test_seeds_resumed_and_streamed_runs_share_the_held_out_images(photos: Path):
    recipe = named("digits/vanilla").replace(dataset="folder:photos@8", val=0.2, width=1, batch_size=4, epochs=2)
    runtimes = [Runtime(device="cpu", quiet=True, stream=stream, workers=0) for stream in (False, True)]
    whole = train(recipe, "whole", runtimes[0])
    train(recipe, "stopped", runtimes[1], until=3)
    assert_same(train(recipe, "stopped", runtimes[0], resume=True), whole)
    other = train(recipe.replace(seed=1, epochs=1), "other", runtimes[1])
    assert torch.equal(other.read_logits("last").labels, whole.read_logits("last").labels)
    assert (
        len(score_runs([whole, other], "weights", epochs=["last"]).runs) == 2
    )  # one test set: they can be an ensemble


def test_check_of_a_folder_prints_a_table_and_its_faults(photos: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["data", "check", "folder:photos"]) == 0
    assert "cat         10" in capsys.readouterr().out
    (photos / "cat" / "00.png").write_bytes(b"")
    assert main(["data", "check", "folder:photos@8"]) == 2
    out, err = capsys.readouterr()
    assert "cat         10" in out
    assert err.startswith(f"mixmo: {photos / 'cat' / '00.png'} cannot be read")


def test_check_names_an_image_of_too_many_pixels_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
):
    """Pillow's own warning of such an image is not shown."""
    photos = noise(tmp_path, {"train": 1}, "ab", (8, 8, 3))
    (photos / "train" / "a" / "large.png").write_bytes(png(10_000, 0))
    assert main(["data", "check", f"folder:{photos}"]) == 2
    assert "10000 x 10000 pixels, and 50,000,000 are the most" in capsys.readouterr().err
    assert not recwarn.list
