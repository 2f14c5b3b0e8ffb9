"""mixmo demo [--out DIR]: two networks inside one, on the embedded digits."""

from pathlib import Path

import torch

from mixmo.cli.arguments import parse, parser
from mixmo.cli.console import Output, grid
from mixmo.demo import COPIES, NOISE, compare
from mixmo.engine import Runtime
from mixmo.metrics import Report


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
