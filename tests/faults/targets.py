"""What is fuzzed: valid files, made anew, and how each is read."""

import atexit
import json
import pickle
import shutil
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

import mixmo
from mixmo.cli.arguments import read_fields
from mixmo.data import cifar
from mixmo.data.corrupted import corrupted
from mixmo.data.extract import unpack
from mixmo.engine import Runtime, train
from mixmo.engine.recorded import read_recorded
from mixmo.inference.preparation import read_images
from mixmo.models.metadata import About
from mixmo.recipes import Recipe, named
from mixmo.runs.checkpoint import Checkpoints
from mixmo.runs.directory import Run
from mixmo.serve.errors import RequestError
from mixmo.serve.images import Upload, prepare
from mixmo.storage import checksums
from mixmo.storage.weights import load_tensors
from mixmo.surgery.weight_files import read_weights
from mixmo.utils.errors import UserError

ABOUT = About((3, 16, 16), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), classes=("cat", "dog", "owl"))
SMALL = cifar.CIFAR100._replace(train_images=4, test_images=4, contents={})
FORMATS = {"jpg": "RGB", "png": "RGB", "webp": "RGB", "gif": "P", "bmp": "RGB", "tif": "RGB", "ppm": "RGB"}

TURNED = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\6\0\0\0\0\0\0\0"  # EXIF: by 90 degrees


class Target(NamedTuple):
    """One kind of file."""

    make: Callable[[Path], object]  # writes valid files into an empty folder
    read: Callable[[Path, Path], object]  # of (the folder, the damaged file)
    files: str = "**/*"  # that may be damaged
    share: int = 1  # a trial that takes long is made once where others are made so often


def _make_recipe(folder: Path) -> None:
    Run.create(folder / "run", named("digits/cut-mixmo"))


def _read_recipe(folder: Path, file: Path) -> None:
    run = Run.open(file.parent)
    run.is_finished()
    run.recipe.mixer()


def _make_config(folder: Path) -> None:
    (folder / "config.yaml").write_text(
        "width: 4\nmask: cow\ndecay: [0.5, 0.75]\nweights: null\nlr: 1e-1\nflip: true\n"
    )


def _read_config(folder: Path, file: Path) -> None:
    Recipe().replace(**read_fields(file))


@cache
def _trained() -> Path:
    """A finished run without what the checksums would notice."""
    run = Path(tempfile.mkdtemp()) / "run"
    atexit.register(shutil.rmtree, run.parent, ignore_errors=True)
    recipe = named("digits/cut-mixmo").replace(model="wrn", depth=10, width=1, epochs=2, batch_size=512)
    train(recipe, run, Runtime(device="cpu", quiet=True))
    for name in ("report.html", checksums.NAME, "best.safetensors", "logits-best.safetensors"):
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    return run


def _make_run(folder: Path) -> None:
    shutil.copytree(_trained(), folder / "run")


def _read_run(folder: Path, file: Path) -> None:
    run = Run.open(folder / "run")
    if file.name == "environment.json":
        Runtime(**read_recorded(run).options)
    elif file.name in ("metrics.jsonl", "logits-last.safetensors"):
        run.read_metrics()
        run.read_logits()
    else:
        mixmo.load(run.path)


def _make_checkpoint(folder: Path) -> None:
    _make_run(folder)
    run = folder / "run"
    (run / "scores.json").unlink()
    checkpoint = run / "checkpoints" / "00000004"
    checkpoint.mkdir(parents=True)
    weights = load_tensors(run / "last.safetensors")
    save_file(weights, checkpoint / "weights.safetensors")
    momentum = {name: torch.zeros_like(tensor) for name, tensor in weights.items() if name.endswith("weight")}
    save_file(momentum, checkpoint / "optimizer.safetensors")
    save_file(weights, checkpoint.parent / "best-00000002.safetensors")
    (run / "last.safetensors").unlink()
    (run / "logits-last.safetensors").unlink()
    state = {"step": 4, "epochs_logged": 2, "meter": [0.0, 0.0], "best_step": 2, "best_top1": 0.5, "seconds": 1.0}
    (checkpoint / "state.json").write_text(json.dumps(state | {"loss_scale": None, "logged": None}))


def _read_checkpoint(folder: Path, file: Path) -> None:
    run = folder / "run"
    if file.name not in ("state.json", "optimizer.safetensors"):
        mixmo.load(run, "best" if file.name.startswith("best") else "last")
    else:
        net = mixmo.create("wrn10_1", classes=10, channels=1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        Checkpoints(run / "checkpoints").load(net, optimizer)


def _make_saved(folder: Path) -> None:
    mixmo.save_pretrained(mixmo.create("wrn10_1", classes=3), folder / "saved", about=ABOUT)
    for each in (checksums.NAME, "README.md"):
        (folder / "saved" / each).unlink()


def _make_wrapped(folder: Path) -> None:
    from torchvision.models import squeezenet1_1  # after mixmo, which lets it be imported with any torch

    backbone = squeezenet1_1(num_classes=3)
    mixmo.save_pretrained(mixmo.wrap(backbone, size=(3, 32, 32)), folder / "saved")
    (folder / "saved" / checksums.NAME).unlink()


def _make_cifar(folder: Path) -> None:
    (folder / SMALL.folder).mkdir()
    pixels = np.arange(4 * 3072, dtype=np.uint8).reshape(4, 3072)
    batch = {"filenames": [b"a.png", b"b.png"], "fine_labels": [0, 1, 2, 3], "data": pixels}
    for name, thing, protocol in (
        ("train", batch, 2),
        ("test", {key.encode(): value for key, value in batch.items()}, 4),
        ("meta", {"fine_label_names": [b"apple", b"baby", b"bear", b"bed"]}, 2),
    ):
        (folder / SMALL.folder / name).write_bytes(pickle.dumps(thing, protocol))


def _make_images(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(24, 20, 3), dtype=np.uint8)
    for suffix, mode in FORMATS.items():
        Image.fromarray(pixels).convert(mode).save(folder / f"a.{suffix}")
    Image.fromarray(pixels).save(folder / "exif.jpg", exif=TURNED)
    Image.fromarray(pixels[..., 0]).save(folder / "grey.tif", compression="tiff_lzw")
    Image.fromarray(pixels).save(folder / "deflate.tif", compression="tiff_deflate")
    Image.fromarray(pixels).convert("RGBA").save(folder / "alpha.webp", lossless=True)
    Image.fromarray(pixels).convert("P").save(folder / "palette.png", transparency=0)


def _read_image(folder: Path, file: Path) -> None:
    (read,) = read_images([str(file)], ABOUT, 1)
    try:
        prepare([Upload(file.name, file.read_bytes())], ABOUT, 1_000_000)
    except RequestError as error:
        raise UserError(f"{error.detail}; {[reason for _, reason in read.failed]}") from error


def _make_archive(folder: Path) -> None:
    source = folder / "source" / "set"
    (source / "deep").mkdir(parents=True)
    for name in ("a.txt", "deep/b.txt"):
        (source / name).write_text(name * 50)
    for name, mode in (("a.tar", "w"), ("b.tar.gz", "w:gz")):
        with tarfile.open(folder / name, mode) as archive:
            archive.add(source, "set")
    with zipfile.ZipFile(folder / "c.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a.txt", "deep/b.txt"):
            archive.write(source / name, f"set/{name}")
    shutil.rmtree(folder / "source")


def _read_archive(folder: Path, file: Path) -> None:
    try:
        unpack(file, folder / "set", 10, 100_000)
    finally:
        shutil.rmtree(folder / "set", ignore_errors=True)


def _make_corrupted(folder: Path) -> None:
    np.save(folder / "labels.npy", np.tile(np.arange(2, dtype=np.uint8), 5))
    np.save(folder / "fog.npy", np.zeros((10, 32, 32, 3), np.uint8))
    (folder / "severities.txt").write_text("1 2 3 4 5\n")


def _read_corrupted(folder: Path, file: Path) -> None:
    for cell in corrupted(folder):
        assert len(cell.split.images) == len(cell.split.labels)


def _make_weights(folder: Path) -> None:
    tensors = {"conv.weight": torch.ones(4, 3), "bn.bias": torch.zeros(4), "bn.count": torch.tensor(3)}
    whole = {"state_dict": tensors, "epoch": 3, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}}
    torch.save(whole, folder / "a.pt")
    torch.save(torch.nn.BatchNorm2d(3).state_dict(), folder / "b.pt")
    torch.save(tensors, folder / "old.pth", _use_new_zipfile_serialization=False)
    save_file(tensors, folder / "c.safetensors")


def _read_weights(folder: Path, file: Path) -> None:
    state = read_weights(file, ["conv.weight"])
    sum(float(tensor.double().sum()) for tensor in state.values() if tensor.numel() < 10_000 and not tensor.is_sparse)


TARGETS = {
    "recipe": Target(_make_recipe, _read_recipe),
    "config": Target(_make_config, _read_config),
    "run": Target(_make_run, _read_run),
    "checkpoint": Target(_make_checkpoint, _read_checkpoint),
    "network": Target(_make_saved, lambda folder, _: mixmo.load(folder / "saved")),
    "backbone": Target(_make_wrapped, lambda folder, _: mixmo.load(folder / "saved"), "saved/config.json", 10),
    "cifar": Target(_make_cifar, lambda folder, _: cifar.read(folder, SMALL)),
    "image": Target(_make_images, _read_image),
    "archive": Target(_make_archive, _read_archive),
    "corrupted": Target(_make_corrupted, _read_corrupted),
    "weights": Target(_make_weights, _read_weights),
}


def make(target: Target, folder: Path) -> list[Path]:
    """Write the valid files of a target; return those that may be damaged."""
    with warnings.catch_warnings(action="ignore"):
        target.make(folder)
    return sorted(path for path in folder.glob(target.files) if path.is_file())
