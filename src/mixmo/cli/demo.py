"""mixmo demo [--out DIR]: two networks inside one, on the embedded digits."""

from pathlib import Path
from typing import Annotated, NamedTuple

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
from mixmo.models import Ensemble
from mixmo.recipes import named
from mixmo.recipes.fields import at_least
from mixmo.runs.network import load_network

NOISE, COPIES = 40, 10  # standard deviation, of 255, and how many noisy copies of the test images


def main(arguments: list[str]) -> None:
    into = parser("demo", "Train Cut-MixMo and Linear-MixMo on the embedded digits and show what each head learns.")
    into.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the runs and the figure")
    into.add_argument("--epochs", type=Annotated[int, at_least(1)], help="epochs, if not those of the recipe")
    into.add_argument("--device", default="cpu", help="device to train on: cpu, cuda, cuda:1, ...")
    parsed = parse(into, arguments)
    torch.set_num_threads(1)  # nearly as fast for a small network, and everyone gets the same numbers
    runtime, names = Runtime(device=parsed.device), {"Cut-MixMo": "cut-mixmo", "Linear-MixMo": "linear-mixmo"}
    found = {title: study(name, parsed.out, runtime, parsed.epochs) for title, name in names.items()}
    console = Output(80)
    console.print("\nTwo images in one forward pass, encodings summed: which head classifies which?", style="bold")
    accuracy = enumerate(found["Cut-MixMo"].accuracy)
    rows = [(f"head {head}", *[f"{100 * share:.1f} %" for share in shares]) for head, shares in accuracy]
    console.print(grid("", "accuracy on image 0", "accuracy on image 1", rows=rows))
    console.print("(chance: 10 %)\n")
    console.print("One image as both inputs: Top1 of the ensemble and of each head", style="bold")
    columns = ("mixing", "images", "ensemble", "head 0", "head 1", "NLL", "agreement", "ratio-error")
    table = grid(*columns, words=2)
    for title, scores in found.items():
        table.add_row(title, "clean", *numbers(scores.clean)[:-1], "")  # too few errors for a ratio
        table.add_row("", "noisy", *numbers(scores.noisy))
    console.print(table)
    print(
        f"Noisy: {COPIES} copies of the test set, Gaussian noise of standard deviation {NOISE}/255.\n"
        "Clean digits are too easy for the ensemble to gain accuracy; noisy ones are not.\n"
        "Ratio-error: errors of one head alone / errors of both; higher is more diverse."
    )
    console.print(f"\nfigure: {parsed.out / 'cut-mixmo.png'}", soft_wrap=True)


def numbers(report: Report) -> list[str]:
    assert report.diversity is not None
    agreement, ratio_error = report.diversity.agreement, report.diversity.ratio_error
    accuracies = [f"{100 * scores.top1:.1f} %" for scores in (report.ensemble, *report.members)]
    return [*accuracies, f"{report.ensemble.nll:.3f}", f"{100 * agreement:.1f} %", f"{ratio_error:.2f}"]


class Study(NamedTuple):
    """Scores of one network."""

    accuracy: list[list[float]]  # [head][image]: how often the head predicts the image's class
    clean: Report  # one image as both inputs
    noisy: Report  # the same, with noise: enough errors to compare the heads


def study(name: str, out: Path, runtime: Runtime, epochs: int | None) -> Study:
    """Train, draw and score a network; a finished run is not trained again."""
    dataset, recipe = data.load("digits"), named(f"digits/{name}")
    recipe = recipe if epochs is None else recipe.replace(epochs=epochs)
    net = load_network(train(recipe, out / name, runtime, resume=True))
    first, second, labels = two_images(dataset)
    with torch.no_grad():
        classes = net.read(torch.stack((first, second))).argmax(-1)
    draw(net, dataset, recipe.mixer(), out / f"{name}.png")
    accuracy = [(predicted == labels).float().mean(1).tolist() for predicted in classes]
    return Study(accuracy, *[evaluate(*predict_split(net, dataset, part)) for part in (dataset.test, noisy(dataset))])


def noisy(dataset: Dataset) -> Split:
    """Return copies of the test images with Gaussian noise."""
    images = dataset.test.resident.repeat(COPIES, 1, 1, 1).float()
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    shaken = (images + NOISE * noise).clamp(0, 255).round().to(torch.uint8)
    return Split(shaken, dataset.test.labels.repeat(COPIES))


def two_images(dataset: Dataset) -> tuple[Tensor, Tensor, Tensor]:
    """Return the test images, other ones of another class, and the labels (2, N) of both."""
    labels = dataset.test.labels
    order = labels.argsort(stable=True)
    other = torch.empty_like(order)
    other[order] = order.roll(len(order) // 2)  # half the sorted set away: five classes on
    images = normalise(dataset.test.resident, dataset.mean, dataset.std)
    return images, images[other], torch.stack((labels, labels[other]))


def draw(net: Ensemble, dataset: Dataset, mixer: Mixer, path: Path) -> None:
    """Draw both inputs, the mask, the mixed input and the predictions of each head."""
    first, second, labels = two_images(dataset)
    pick = torch.arange(3, len(first), len(first) // 8)[:8]
    generator = torch.Generator().manual_seed(7)
    height, width = first.shape[-2:]
    draws = mixer.draw(len(pick), height, width, first.device, generator)
    shares = mixer.coefficients(draws, torch.tensor(1.0), height, width)
    mix = Mix(torch.stack((first[pick], second[pick])), shares, labels[:, pick], torch.ones(2, len(pick)))
    with torch.no_grad():
        classes = net(mix).argmax(-1)
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
        pen.text((8, top + 4), f"head {head} predicts", fill="black", font_size=14)
        for c in range(len(pick)):
            predicted, truth = int(classes[head, c]), int(labels[head, pick[c]])
            colour = "#107c10" if predicted == truth else "#c00000"
            pen.text((left + c * cell + cell // 2 - 6, top), str(predicted), fill=colour, font_size=20)
    canvas.save(path)
