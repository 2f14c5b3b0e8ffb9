"""`mixmo train --model ...`: one model of every kind of stem through training, and everything downstream of a run."""

import re
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

README = Path(__file__).resolve().parents[2] / "README.md"
MODULE = """
from torch import nn

class Patches(nn.Module):
    \"\"\"A dense layer on patches of 8x8 pixels: tokens.\"\"\"
    def __init__(self, channels):
        super().__init__()
        self.embed = nn.Linear(64 * channels, 16)
    def forward(self, x):
        return self.embed(nn.functional.unfold(x, 8, stride=8).transpose(1, 2))

class Grid(nn.Module):
    \"\"\"A dense layer on a grid of patches of 4x4 pixels, channels last.\"\"\"
    def __init__(self, channels):
        super().__init__()
        self.embed = nn.Linear(16 * channels, 16)
    def forward(self, x):
        return self.embed(nn.functional.pixel_unshuffle(x, 4).permute(0, 2, 3, 1))

class Branches(nn.Module):
    \"\"\"Two convolutions side by side.\"\"\"
    def __init__(self, channels):
        super().__init__()
        self.three, self.one = nn.Conv2d(channels, 16, 3, 2, 1), nn.Conv2d(channels, 16, 1, 2)
        self.norm = nn.BatchNorm2d(16)
    def forward(self, x):
        return self.norm(self.three(x) + self.one(x))

class Mean(nn.Module):
    def __init__(self, *dims):
        super().__init__()
        self.dims = dims
    def forward(self, x):
        return x.mean(self.dims)

def tokens(num_classes, in_chans=3):
    return nn.Sequential(Patches(in_chans), nn.GELU(), Mean(1), nn.Linear(16, num_classes))

def grid(num_classes, in_chans=3):
    return nn.Sequential(Grid(in_chans), nn.LayerNorm(16), nn.GELU(), Mean(1, 2), nn.Linear(16, num_classes))

def branches(num_classes, in_chans=3):
    return nn.Sequential(Branches(in_chans), nn.ReLU(), Mean(2, 3), nn.Linear(16, num_classes))
"""
KINDS = {  # kind of stem: model, side of the images, layout of the encoded features
    "one convolution": ("torchvision/mobilenet_v3_small", 64, "NCHW"),
    "first of three convolutions": ("timm/test_resnet", 32, "NCHW"),
    "patches by a convolution, then a norm": ("timm/test_convnext", 64, "NCHW"),
    "patches by a convolution, a class token": ("timm/test_vit", 64, "NCHW"),
    "weight-standardised convolution": ("timm/test_nfnet", 32, "NCHW"),
    "several branches": ("own_stems:branches", 32, "NCHW"),
    "patches by a dense layer": ("own_stems:tokens", 32, "NLC"),
    "patches by a dense layer, channels last": ("own_stems:grid", 32, "NHWC"),
}
SHORT = ["--epochs", "1", "--batch-size", "16", "--warmup", "0", "--precision", "fp32", "--quiet"]
DIGITS = ["--dataset", "digits", "--no-flip", "--crop-scale", "1", *SHORT, "--batch-size", "512"]


def untrained(model: str, folder: Path, size: int = 32) -> list[str]:
    """A short training of a backbone with random weights on a folder of photographs."""
    data = ["--dataset", f"folder:{folder}@{size}", "--val", "0.25", "--validation", "0.25"]
    return ["--model", model, "--no-pretrained", *data, *SHORT]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_stem_trains(kind: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a recipe it is finetune/cut-mixmo; the run is loaded again and predicts as it was scored."""
    (tmp_path / "own_stems.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    model, size, layout = KINDS[kind]
    assert main(["train", *untrained(model, photos, size), "--out", "run"]) == 0
    run = Run.open(tmp_path / "run")
    assert (run.recipe.mask, run.recipe.optimizer, run.recipe.members) == ("cut", "adamw", 2)
    net = mixmo.load(run.path)
    assert isinstance(net, mixmo.Wrapped)
    assert {net.encoders_at(stem).layout for stem in net.stems} == {layout}
    images = mixmo.data.load(run.recipe.dataset, val=0.25).test.resident
    prediction = mixmo.predict(net, images.permute(0, 3, 1, 2))
    torch.testing.assert_close(prediction.logits, run.read_logits().logits, rtol=1e-3, atol=1e-3)


def test_images_of_one_channel_train(tmp_path: Path) -> None:
    words = ["train", "--model", "timm/test_resnet", "--no-pretrained", "--size", "32", *DIGITS]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    assert mixmo.load(tmp_path / "run").backbone.conv1[0].copies[0].in_channels == 1


@pytest.mark.parametrize(
    "options",
    [
        ["finetune/vanilla"],
        ["finetune/cutmix"],
        ["finetune/mimo"],
        ["finetune/linear-mixmo", "--repetition", "1"],
        ["cifar100/cut-mixmo", "--lr", "0.01"],
        ["finetune/cut-mixmo", "--unmix", "fadeout", "--curriculum", "ratio", "--head-lr", "2", "--size", "64"],
        ["finetune/cut-mixmo", "--auto-augment", "randaugment", "--random-erase", "0.2", "--color-jitter", "0.3"],
        ["finetune/cut-mixmo", "--grad-accum-steps", "2", "--label-smoothing", "0.1", "--balance", "loss"],
    ],
    ids=" ".join,
)
def test_every_method_takes_a_backbone(options: list[str], photos: Path, tmp_path: Path) -> None:
    recipe, *changes = options
    words = ["train", recipe, *untrained("timm/test_resnet", photos), *changes]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
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
def exported(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the README's four commands, run as printed but for a small network without pretrained weights."""
    commands = re.findall(r"^mixmo (.*photos.*)$", README.read_text().partition("## From photographs")[2], re.MULTILINE)
    small = {"timm/resnet50 --pretrained": "timm/test_resnet --no-pretrained", "@224": "@32"}
    folder = tmp_path_factory.mktemp("new user")
    (folder / "photos").symlink_to(photos)
    more = "--epochs 6 --lr 0.02 --layer-decay 1 --batch-size 16 --validation 0.25 --precision fp32 --quiet"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in commands[:4]:
            for printed, ours in small.items():
                command = command.replace(printed, ours)
            assert main([*command.split(), *(more.split() if command.startswith("train") else ())]) == 0
    return folder


def test_from_photographs_to_onnx(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exported file predicts the calibrated probabilities of the network that was trained."""
    import onnxruntime

    run = exported / "runs" / "photos"
    assert main(["predict", str(run), str(exported / "photos" / "red")]) == 0
    assert main(["compare", str(run)]) == 0
    assert capsys.readouterr().out.count(",red,") >= 20
    net = mixmo.load(run)
    images = torch.rand(3, 3, 32, 32)
    session = onnxruntime.InferenceSession(exported / "photos.onnx")
    given = {session.get_inputs()[0].name: images.numpy()}
    probs = session.run(None, given)[0]
    about = net.about
    assert about is not None
    assert about.calibration is not None
    with torch.no_grad():
        expected = (net(images) / about.calibration.temperature).softmax(-1)
    torch.testing.assert_close(torch.from_numpy(probs), expected, rtol=1e-3, atol=1e-4)


def test_a_run_of_a_backbone_is_a_start(exported: Path, photos: Path, tmp_path: Path) -> None:
    """Its members are kept, or converted to another number."""
    run, changes = exported / "runs" / "photos", ["--members", "3", "--lr", "1e-9"]
    words = ["train", "finetune/cut-mixmo", *untrained("timm/test_resnet", photos), *changes]
    assert main([*words, "--start", str(run), "--out", str(tmp_path / "three")]) == 0
    sums = []
    for path in (run, tmp_path / "three"):
        net = mixmo.load(path)
        assert isinstance(net, mixmo.Wrapped)
        sums.append(torch.stack([copy.weight for copy in net.encoders_at(net.stems[0]).copies]).sum(0))
    torch.testing.assert_close(sums[0], sums[1])


@pytest.mark.parametrize(("option", "reminded"), [("--pretrained", False), ("--no-pretrained", True)])
def test_a_recipe_for_random_weights_reminds_of_the_learning_rate(
    option: str, reminded: bool, exported: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in untrained("timm/test_resnet", photos) if word not in ("--quiet", "--no-pretrained")]
    start = str(exported / "runs" / "photos")
    assert main(["train", "finetune/cut-mixmo", *words, option, "--start", start, "--out", str(tmp_path / "run")]) == 0
    assert ("is for random weights" in capsys.readouterr().err) == reminded


BAD = {
    "--model timm/resnet5": "resnet50",
    "--model resnet50": "timm/NAME",
    "cifar100/cut-mixmo --model resnet50": "timm/NAME",
    "--model timm/test_resnet --no-pretrained --stem conv9": "conv9",
    "--model timm/test_resnet --no-pretrained --head layer4": "head",
    "--model timm/test_resnet --pretrained": "--weights FILE, or --no-pretrained",
    "--model timm/test_resnet --weights nothing.safetensors": "nothing.safetensors",
    "--model timm/test_resnet --weights other.safetensors": "conv1.0.weight",
    "--model timm/test_resnet --width 2 --encoders 1": "encoders = 1 is for network families",
    "cifar100/gradaug --model timm/test_resnet": "recipe cifar100/gradaug: subnets = 3 is for network families, not",
    "cifar100/shared-all --model timm/test_resnet": "recipe cifar100/shared-all: encoders = 1 is for network families",
    "--model no.such.module:make": "no.such.module",
    "finetune/cut-mixmo --model wrn": "pretrained",
    "digits/vanilla --weights a.safetensors": "weights = 'a.safetensors' is for backbones",
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
    assert "classes without training images" in (error := capsys.readouterr().err)
    assert "blue" in error


def test_a_class_whose_images_are_all_held_out_is_named(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, count in (("red", 24), ("blue", 1)):
        (tmp_path / "set" / name).mkdir(parents=True)
        for path in sorted((photos / name).iterdir())[:count]:
            shutil.copy(path, tmp_path / "set" / name)
    words = ["train", *untrained("timm/test_resnet", tmp_path / "set"), "--validation", "0.9", "--batch-size", "2"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert "with validation = 0.9 held out: blue" in capsys.readouterr().err


def test_an_image_that_cannot_be_decoded_is_named_and_skipped(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "some")
    (tmp_path / "some" / "red" / "broken.jpg").write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"1 .*broken\.jpg"):
        assert main(["train", *untrained("timm/test_resnet", tmp_path / "some"), "--out", str(tmp_path / "run")]) == 0
