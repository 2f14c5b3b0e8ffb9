"""mixmo demo [--out DIR]: two networks inside one, on the embedded digits."""

from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from mixmo import data
from mixmo.augment.basic import normalise
from mixmo.cli.arguments import parse, parser
from mixmo.cli.console import Output, grid
from mixmo.data.types import Dataset, Split
from mixmo.engine import Runtime, train
from mixmo.inference.predict import predict_split
from mixmo.metrics import Report, evaluate
from mixmo.mixing.mixer import Mixer
from mixmo.mixing.types import Mix
from mixmo.models import Network
from mixmo.recipes import named
from mixmo.runs.network import load_network

NOISE, COPIES = 40, 10  # standard deviation, of 255, and how many noisy copies of the test images


def main(arguments: list[str]) -> None:
    into = parser("demo", "Train Cut-MixMo and Linear-MixMo on the embedded digits and show the mechanism.")
    into.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the runs and the picture")
    into.add_argument("--epochs", type=int | None, default=None, help="shorter or longer than the recipe")
    into.add_argument("--device", default="cpu", help="where to train")
    parsed = parse(into, arguments)
    torch.set_num_threads(1)  # the network is small: one thread is nearly as fast, and everyone sees the same figures
    cut, linear = compare(parsed.out, Runtime(device=parsed.device), parsed.epochs)
    console = Output(100)
    console.print("\nTwo images in one forward pass, plainly summed: which head reads which image?", style="bold")
    table = grid("", "says the first image's digit", "says the second image's digit")
    for head in (0, 1):
        table.add_row(f"head {head}", *[f"{100 * cut.reads[head][image]:.1f} %" for image in (0, 1)])
    console.print(table)
    console.print("(a blind guess is right for 10 %)\n")
    console.print("One image given twice: the ensemble and its members", style="bold")
    columns = ("mixing", "test images", "ensemble", "head 0", "head 1", "NLL", "agreement", "ratio-error")
    table = grid(*columns, words=2)
    for reading in (cut, linear):
        table.add_row(reading.name, "clean", *numbers(reading.clean), "")
        assert reading.noisy.diversity is not None
        table.add_row("", "noisy", *numbers(reading.noisy), f"{reading.noisy.diversity.ratio_error:.2f}")
    console.print(table)
    print(
        "Clean digits are too easy for an ensemble to gain accuracy; compare it with its heads on the noisy\n"
        f"ones: {COPIES} copies of the test set with noise of {NOISE} / 255. Ratio-error is how often one head errs\n"
        "alone, over how often both do: higher is more diverse. It needs many errors, so only there."
    )
    console.print(f"\npicture: {cut.picture}", soft_wrap=True)


def numbers(report: Report) -> list[str]:
    assert report.diversity is not None
    accuracies = [f"{100 * scores.top1:.1f} %" for scores in (report.ensemble, *report.members)]
    return [*accuracies, f"{report.ensemble.nll:.3f}", f"{100 * report.diversity.agreement:.1f} %"]


class Reading(NamedTuple):
    """What the demonstration found out about one network."""

    name: str
    reads: tuple[list[float], list[float]]  # [head][image]: how often the head names the image's digit
    clean: Report  # one image given to both heads
    noisy: Report  # the same, with noise: enough errors to compare the heads'
    picture: Path


def compare(out: Path, runtime: Runtime, epochs: int | None = None) -> tuple[Reading, Reading]:
    """Cut-MixMo beside Linear-MixMo. Runs that are finished already are not trained again."""
    dataset = data.load("digits")
    readings = []
    for name, title in (("cut-mixmo", "patch (Cut-MixMo)"), ("linear-mixmo", "linear (Linear-MixMo)")):
        recipe = named(f"digits/{name}")
        recipe = recipe if epochs is None else recipe.replace(epochs=epochs)
        net = load_network(train(recipe, out / name, runtime, resume=True))
        first, second, labels = two_images(dataset)
        with torch.no_grad():
            answers = net.read(torch.stack((first, second))).argmax(-1)
        first_head, second_head = ((answer == labels).float().mean(1).tolist() for answer in answers)
        picture = out / f"{name}.png"
        draw(net, dataset, recipe.mixer(), picture)
        clean, shaken = (evaluate(*predict_split(net, dataset, part)) for part in (dataset.test, noisy(dataset)))
        readings.append(Reading(title, (first_head, second_head), clean, shaken, picture))
    return readings[0], readings[1]


def noisy(dataset: Dataset) -> Split:
    """Copies of the test images with Gaussian noise."""
    images = dataset.test.resident.repeat(COPIES, 1, 1, 1).float()
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    shaken = (images + NOISE * noise).clamp(0, 255).round().to(torch.uint8)
    return Split(shaken, dataset.test.labels.repeat(COPIES))


def two_images(dataset: Dataset) -> tuple[Tensor, Tensor, Tensor]:
    """The test images, each beside one of another class; labels (2, N)."""
    labels = dataset.test.labels
    order = labels.argsort(stable=True)
    other = torch.empty_like(order)
    other[order] = order.roll(len(order) // 2)  # half the sorted set away: five classes on
    images = normalise(dataset.test.resident, dataset.mean, dataset.std)
    return images, images[other], torch.stack((labels, labels[other]))


def draw(net: Network, dataset: Dataset, mixer: Mixer, path: Path) -> None:
    """One picture: both inputs, the mask, what the network is shown, and what each head answers."""
    first, second, labels = two_images(dataset)
    pick = torch.arange(3, len(first), len(first) // 8)[:8]
    generator = torch.Generator().manual_seed(7)
    height, width = first.shape[-2:]
    draws = mixer.draw(len(pick), height, width, first.device, generator)
    shares = mixer.coefficients(draws, torch.tensor(1.0), height, width)
    mix = Mix(torch.stack((first[pick], second[pick])), shares, labels[:, pick], torch.ones(2, len(pick)))
    with torch.no_grad():
        answers = net(mix).argmax(-1)
    shares = shares.expand(-1, -1, -1, height, width)
    raw = [dataset.test.resident[pick, :, :, 0], (second[pick, 0] * dataset.std[0] + dataset.mean[0]) * 255]
    shown = shares[0, :, 0] * raw[0] + shares[1, :, 0] * raw[1]
    rows = [
        ("input of head 0", raw[0]),
        ("input of head 1", raw[1]),
        ("share of input 0", shares[0, :, 0] * 255),
        ("mixed", shown),
    ]
    cell, left = 72, 130
    canvas = Image.new("RGB", (left + cell * len(pick), cell * len(rows) + 64), "#e8e8e8")
    pen = ImageDraw.Draw(canvas)
    for r, (caption, images) in enumerate(rows):
        pen.text((8, r * cell + cell // 2 - 6), caption, fill="black", font_size=14)
        for c, pixels in enumerate(images):
            tile = Image.fromarray(pixels.clamp(0, 255).round().to(torch.uint8).numpy())
            tile = tile.resize((cell - 8, cell - 8), Image.Resampling.NEAREST)
            canvas.paste(tile, (left + c * cell + 4, r * cell + 4))
    for head in (0, 1):
        top = cell * len(rows) + 4 + head * 28
        pen.text((8, top + 4), f"head {head} answers", fill="black", font_size=14)
        for c in range(len(pick)):
            answer, truth = int(answers[head, c]), int(labels[head, pick[c]])
            colour = "#107c10" if answer == truth else "#c00000"
            pen.text((left + c * cell + cell // 2 - 6, top), str(answer), fill=colour, font_size=20)
    canvas.save(path)
