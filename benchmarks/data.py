"""How fast images come: from memory, from a cache, and streamed from files beside a plain DataLoader over the same.

    MIXMO_DATA=/path/to/data python benchmarks/data.py [--workers 2] [--images 3000] [--repeats 3] [--device cuda]

The files are JPEGs of 256 pixels, enlarged from Tiny ImageNet's (or noise, where it is not there). The plain DataLoader
does what most programs do: one sample at a time, decoded by PIL, batches put together by the default collation. Both
decode the same files in the same order with as many workers; their passes alternate, and the medians are compared.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import mixmo
from mixmo import data
from mixmo.data.catalog import data_directory
from mixmo.data.stream import Files
from mixmo.engine.batch import Batches, Now
from mixmo.engine.source import each_step, plan
from mixmo.engine.step_timer import random_dataset
from mixmo.recipes import PROTOCOLS, Recipe, named
from mixmo.utils.errors import UserError
from mixmo.utils.rng import Stream

SIZE, BATCH = 256, 128
DEVICE = torch.device("cpu")  # or as `--device` says


class Plain(Dataset[tuple[Tensor, int]]):
    """One file at a time."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        with Image.open(self.files.samples[number].path) as image:
            pixels = np.array(image.convert("RGB"))
        return torch.from_numpy(pixels), int(self.files.labels[number])


def make_files(root: Path, images: int, source: Path) -> None:
    """Two classes of JPEGs of 256 x 256 pixels at quality 90."""
    found = sorted(source.glob("train/*/images/*.JPEG"))
    found = found[:: max(1, len(found) // images)]
    random = np.random.default_rng(0)
    for number in range(images + 2):
        part = root / ("val" if number < 2 else "train") / str(number % 2)
        part.mkdir(parents=True, exist_ok=True)
        if found:
            with Image.open(found[number % len(found)]) as image:
                picture = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        else:
            coarse = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            picture = Image.fromarray(coarse).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        picture.save(part / f"{number:06}.jpg", quality=90)


def rate(images: int, work: Callable[[], object]) -> float:
    wait()
    began = time.perf_counter()
    work()
    wait()
    return images / (time.perf_counter() - began)


def wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def streaming(files: Files, workers: int, repeats: int) -> None:
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0))
    files = files.to(DEVICE, workers)

    def plain() -> None:
        pinned = DEVICE.type == "cuda"
        loader = DataLoader(Plain(files), BATCH, sampler=order.tolist(), num_workers=workers, pin_memory=pinned)
        for images, _ in loader:
            assert images.to(DEVICE, non_blocking=True).dtype == torch.uint8

    def streamed() -> None:
        for pool in files.read(order.split(BATCH)):
            assert pool.resident.dtype == torch.uint8

    for work in (plain, streamed):
        work()  # the files are in the system's cache for both
    rates: dict[str, list[float]] = {"plain": [], "streamed": []}
    for _ in range(repeats):
        rates["plain"].append(rate(len(files), plain))
        rates["streamed"].append(rate(len(files), streamed))
    middle = {name: statistics.median(values) for name, values in rates.items()}
    for name, values in rates.items():
        label = {"plain": f"plain DataLoader, {workers} workers", "streamed": f"streamed, {workers} workers"}[name]
        row(label, f"{middle[name]:,.0f} images/s ({min(values):,.0f} to {max(values):,.0f})")
    row("streamed / plain", f"{100 * middle['streamed'] / middle['plain']:.0f} %")


def pipeline(name: str, recipe: Recipe, dataset: mixmo.Dataset, steps: int, repeats: int) -> None:
    """Batches as the network reads them, drawn, augmented and mixed here: M N images a step, of N / b distinct ones."""
    batches, stream = Batches(recipe, dataset, dataset.train), Stream(0, DEVICE)
    planned = plan(recipe, len(dataset.train.labels), 0)
    steps = min(steps, len(planned.unique))
    now = Now.at(recipe.p, device=DEVICE)

    def work() -> None:
        for number, samples in enumerate(each_step(recipe, dataset.train, planned, 0, steps)):
            draws = batches.draw(samples.unique, stream.at("step", number), samples.partners, samples.pool)
            batches.mix(draws, now)

    work()
    images = steps * recipe.batch_size * recipe.members
    row(name, f"{statistics.median(rate(images, work) for _ in range(repeats)):,.0f} images/s")


def ready(name: str, repeats: int) -> None:
    """From nothing to tensors that were read to the last byte. The first load, which may decode, is not counted."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        dataset = data.load(name, device=DEVICE)
        for split in (dataset.train, dataset.test):
            split.resident.view(-1)[::4096].sum()  # a cache is mapped into memory: touch every page of it
        wait()
        times.append(time.perf_counter() - began)
    row(f"{name} ready from cache", f"{statistics.median(times[1:]):.2f} s")


def row(what: str, value: str) -> None:
    print(f"| {what} | {value} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    global DEVICE
    DEVICE = torch.device(options.device)
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, pillow {PIL.__version__}, "
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, device {DEVICE}\n\n| what | measured |\n|---|---|"
    )
    for name in ("cifar100", "tiny-imagenet"):
        try:
            ready(name, options.repeats)
        except UserError as error:
            row(f"{name} ready from cache", f"not measured: {error}")
    cifar = named("cifar100/cut-mixmo")
    resident = random_dataset("cifar100", PROTOCOLS["cifar100"].facts._replace(samples=4096), DEVICE)
    pipeline("resident, CIFAR-100 Cut-MixMo batches", cifar, resident, 50, options.repeats)
    pipeline("the same + pixel CutMix", cifar.replace(pixel="cutmix"), resident, 50, options.repeats)
    with tempfile.TemporaryDirectory() as folder:
        source = data_directory(None) / "tiny-imagenet-200"
        make_files(Path(folder), options.images, source)
        name = f"folder:{folder}@{SIZE}"
        dataset = data.load(name, device=DEVICE, stream=True, workers=options.workers)
        assert isinstance(dataset.train.images, Files)
        streaming(dataset.train.images, options.workers, options.repeats)
        imagenet = named("imagenet/cut-mixmo").replace(dataset=name, batch_size=BATCH)
        steps = 4 if DEVICE.type == "cpu" else 40  # of 256 images each: a CPU takes long to resize them
        pipeline("streamed, ImageNet Cut-MixMo batches", imagenet, dataset, steps, options.repeats)
        held = data.load(name, device=DEVICE, stream=False)
        pipeline("resident, ImageNet Cut-MixMo batches", imagenet, held, steps, options.repeats)


if __name__ == "__main__":
    main()
