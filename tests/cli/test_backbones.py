"""`mixmo train --model ...`: one model of every kind of stem through training, and everything downstream of a run."""

import shutil
import socket
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import mixmo
from mixmo.cli.app import main
from mixmo.runs.directory import Run

MODULE = """
from torch import nn

class Patches(nn.Module):
    \"\"\"A dense layer on patches of 8x8 pixels.\"\"\"
    def __init__(self, channels):
        super().__init__()
        self.embed = nn.Linear(64 * channels, 16)
    def forward(self, x):
        return self.embed(nn.functional.unfold(x, 8, stride=8).transpose(1, 2))

class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)

def make(num_classes, in_chans=3):
    return nn.Sequential(Patches(in_chans), nn.GELU(), Mean(), nn.Linear(16, num_classes))
"""
KINDS = {
    "timm/test_resnet": 32,  # a convolution among several
    "timm/test_convnext": 64,  # a patchifying convolution, features NHWC behind it
    "timm/test_vit": 64,  # patch embedding, tokens
    "timm/test_nfnet": 32,  # weight-standardised
    "timm/mobileone_s0": 32,  # several branches
    "dense_patches:make": 32,  # a dense layer
}
SHORT = ["--epochs", "1", "--batch-size", "512", "--warmup", "0", "--crop-scale", "1", "--precision", "fp32"]
DIGITS = ["--dataset", "digits", "--no-pretrained", "--no-flip", "--validation", "100", *SHORT, "--quiet"]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dense_patches.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("model", KINDS)
def test_every_kind_of_stem_trains(model: str, module: None, tmp_path: Path) -> None:
    """Without a recipe it is finetune/cut-mixmo; the run is loaded again and predicts as it was scored."""
    assert main(["train", "--model", model, "--size", str(KINDS[model]), *DIGITS, "--out", "run"]) == 0
    run = Run.open(tmp_path / "run")
    assert (run.recipe.mask, run.recipe.optimizer, run.recipe.members) == ("cut", "adamw", 2)
    net = mixmo.load(run.path)
    digits = mixmo.data.load("digits")
    prediction = mixmo.predict(net, digits.test.resident[:16].permute(0, 3, 1, 2))
    torch.testing.assert_close(prediction.logits, run.read_logits().logits[:, :16], rtol=1e-3, atol=1e-3)
    stems = [parameter for name, parameter in net.named_parameters() if name.startswith(f"backbone.{net.stems[0]}.")]
    assert len(stems) >= 2


@pytest.mark.parametrize(
    "options",
    [
        ["finetune/vanilla"],
        ["finetune/cutmix"],
        ["finetune/mimo"],
        ["finetune/linear-mixmo", "--repetition", "1"],
        ["digits/cut-mixmo", "--lr", "0.01"],
        ["finetune/cut-mixmo", "--unmix", "fadeout", "--curriculum", "ratio", "--head-lr", "2", "--size", "64"],
        ["finetune/cut-mixmo", "--auto-augment", "randaugment", "--random-erase", "0.2", "--color-jitter", "0.3"],
        ["finetune/cut-mixmo", "--grad-accum-steps", "2", "--label-smoothing", "0.1", "--balance", "loss"],
    ],
    ids=" ".join,
)
def test_every_method_takes_a_backbone(options: list[str], tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "run")]
    assert main(["train", "--model", "timm/test_resnet", "--size", "32", *DIGITS, *options, *out]) == 0
    assert Run.open(tmp_path / "run").is_finished()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders of small JPEGs, each class a colour."""
    root = tmp_path_factory.mktemp("data") / "photos"
    generator = torch.Generator().manual_seed(0)
    for name, colour in (("blue", (0, 0, 180)), ("green", (0, 180, 0)), ("red", (180, 0, 0))):
        (root / name).mkdir(parents=True)
        for number in range(24):
            noise = torch.randint(0, 70, (48, 40, 3), generator=generator)
            pixels = (torch.tensor(colour) + noise).to(torch.uint8)
            Image.fromarray(pixels.numpy()).save(root / name / f"{number}.jpg")
    return root


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training of the README on these photographs, with a small network."""
    out = tmp_path_factory.mktemp("runs") / "photos"
    words = [
        "train",
        "--model",
        "timm/test_resnet",
        "--no-pretrained",
        "--dataset",
        f"folder:{photos}@32",
        "--val",
        "0.25",
    ]
    changes = ["--epochs", "6", "--lr", "0.02", "--batch-size", "16", "--validation", "0.25", "--precision", "fp32"]
    assert main([*words, *changes, "--layer-decay", "1", "--quiet", "--out", str(out)]) == 0
    return out


def test_from_photographs_to_onnx(run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of the README: the exported file predicts the calibrated probabilities."""
    import onnxruntime

    assert main(["data", "check", f"folder:{photos}@32"]) == 0
    assert main(["eval", str(run)]) == 0
    assert main(["export", str(run), "--to", str(tmp_path / "photos.onnx")]) == 0
    assert main(["predict", str(run), str(photos / "red")]) == 0
    assert main(["compare", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "ensemble" in printed
    assert printed.count(",red,") >= 20
    net = mixmo.load(run)
    images = torch.rand(3, 3, 32, 32)
    session = onnxruntime.InferenceSession(tmp_path / "photos.onnx")
    given = {session.get_inputs()[0].name: images.numpy()}
    probs = session.run(None, given)[0]
    about = net.about
    assert about is not None
    assert about.calibration is not None
    with torch.no_grad():
        expected = (net(images) / about.calibration.temperature).softmax(-1)
    torch.testing.assert_close(torch.from_numpy(probs), expected, rtol=1e-3, atol=1e-4)


def test_a_run_of_a_backbone_is_a_start(run: Path, photos: Path, tmp_path: Path) -> None:
    """Its members are kept, or converted to another number."""
    words = [
        "train",
        "finetune/cut-mixmo",
        "--model",
        "timm/test_resnet",
        "--dataset",
        f"folder:{photos}@32",
        "--val",
        "0.25",
    ]
    changes = [
        "--members",
        "3",
        "--epochs",
        "1",
        "--warmup",
        "0",
        "--lr",
        "1e-9",
        "--batch-size",
        "16",
        "--no-pretrained",
    ]
    out = ["--validation", "0.25", "--precision", "fp32", "--quiet", "--out", str(tmp_path / "three")]
    assert main([*words, *changes, "--start", str(run), *out]) == 0
    sums = []
    for path in (run, tmp_path / "three"):
        net = mixmo.load(path)
        assert isinstance(net, mixmo.Wrapped)
        sums.append(torch.stack([copy.weight for copy in net.encoders_at(net.stems[0]).copies]).sum(0))
    torch.testing.assert_close(sums[0], sums[1])


def test_a_backbone_of_torchvision(photos: Path, tmp_path: Path) -> None:
    words = [
        "train",
        "--model",
        "torchvision/mobilenet_v3_small",
        "--no-pretrained",
        "--dataset",
        f"folder:{photos}@64",
    ]
    changes = [
        "--val",
        "0.25",
        "--epochs",
        "1",
        "--warmup",
        "0",
        "--batch-size",
        "16",
        "--precision",
        "fp32",
        "--quiet",
    ]
    assert main([*words, *changes, "--out", str(tmp_path / "run")]) == 0
    assert mixmo.predict(mixmo.load(tmp_path / "run"), torch.zeros(1, 3, 64, 64)).probs.shape == (1, 3)


BAD = {
    "--model timm/resnet5": "resnet50",
    "--model timm/test_resnet --no-pretrained --stem conv9": "conv9",
    "--model timm/test_resnet --no-pretrained --head layer4": "head",
    "--model timm/test_resnet --pretrained": "--weights FILE",
    "--model timm/test_resnet --weights nothing.safetensors": "nothing.safetensors",
    "--model timm/test_resnet --weights other.safetensors": "conv1.0.weight",
    "--model timm/test_resnet --width 2 --encoders 1": "encoders = 1 is for network families",
    "--model no.such.module:make": "no.such.module",
    "finetune/cut-mixmo --model wrn": "pretrained",
    "digits/vanilla --weights a.safetensors": "weights = a.safetensors is for backbones",
}


def unknown_host(*_: object, **__: object) -> None:
    raise OSError("Name or service not known")


@pytest.mark.parametrize("words", BAD)
def test_errors_say_what_and_where(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket, "getaddrinfo", unknown_host)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    save_file({"conv1.0.weight": torch.zeros(1), "fc.weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    assert main(["train", *words.split(), "--dataset", "digits", "--size", "32", *SHORT, "--out", "run"]) == 2
    error = capsys.readouterr().err.strip()
    assert BAD[words] in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_class_without_training_images_is_named(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part, names in (("train", ("red", "green")), ("val", ("red", "green", "blue"))):
        for name in names:
            shutil.copytree(photos / name, tmp_path / "set" / part / name)
    words = ["train", "--model", "timm/test_resnet", "--no-pretrained", "--dataset", f"folder:{tmp_path / 'set'}@32"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert "classes without a training image" in (error := capsys.readouterr().err)
    assert "blue" in error


def test_an_image_that_cannot_be_decoded_is_named_and_skipped(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "some")
    (tmp_path / "some" / "red" / "broken.jpg").write_bytes(b"no image")
    words = ["train", "--model", "timm/test_resnet", "--no-pretrained", "--dataset", f"folder:{tmp_path / 'some'}@32"]
    changes = [
        "--val",
        "0.25",
        "--epochs",
        "1",
        "--warmup",
        "0",
        "--batch-size",
        "16",
        "--precision",
        "fp32",
        "--quiet",
    ]
    with pytest.warns(UserWarning, match=r"1 .*broken\.jpg"):
        assert main([*words, *changes, "--out", str(tmp_path / "run")]) == 0
