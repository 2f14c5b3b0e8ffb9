"""mixmo export MODEL --to model.onnx|model.pt2 [--precision fp32|bf16|int8] [--temperature T]"""

import sys
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import Tensor

from mixmo import data
from mixmo.augment.basic import normalise
from mixmo.cli.arguments import parse, parser
from mixmo.data.types import Split
from mixmo.evaluation.images import warn_of_changes
from mixmo.evaluation.models import Model
from mixmo.exporters.export import check_target, export
from mixmo.hub.loading import MODEL, load
from mixmo.metrics.temperature import T_MAX
from mixmo.models import Ensemble
from mixmo.models.metadata import About
from mixmo.recipes.fields import above
from mixmo.runs.directory import Run, is_run
from mixmo.utils.errors import UserError
from mixmo.utils.text import printable, printable_lines

CALIBRATION = 256  # training images that int8 takes its ranges from
FEWEST = 100  # held-out images for a temperature, or the command cautions
MEMORY = 2**30  # bytes of test images, decoded to float32, at most
Labelled = tuple[Tensor, Tensor]  # images as the file takes them, and labels


def main(arguments: list[str]) -> None:
    into = parser("export", "Write a network as one file that outputs probabilities and uncertainties.")
    into.add_argument("model", help=MODEL)
    into.add_argument("--to", type=Path, required=True, help="file to write, .onnx or .pt2")
    into.add_argument("--which", type=Literal["last", "best"], default="last", help="epoch of a run's weights")
    into.add_argument(
        "--temperature",
        type=Annotated[float, above(0)],
        help="divides the logits; by default that of the model, or fitted on the validation images of the run, else 1",
    )
    into.add_argument(
        "--precision",
        type=Literal["fp32", "bf16", "int8"],
        default="fp32",
        help="bf16 and int8 (.onnx) are smaller; their Top1 is measured on the test set",
    )
    into.add_argument("--normalise", action="store_true", help="the file takes pixels in 0..1 and normalises them")
    into.add_argument("--data", type=Path, help="directory of the data sets, for bf16 and int8")
    into.add_argument("--force", action="store_true", help="replace the file if there is one")
    parsed = parse(into, arguments)
    check_target(parsed.to, parsed.precision, parsed.force)
    net = load(parsed.model, parsed.which)
    about = net.about
    if about is None:
        raise UserError(f"{parsed.model} has no metadata on its images; export it in Python with mixmo.export")
    if parsed.temperature is None:
        print(temperature_line(about), file=sys.stderr)
    calibration, test = (None, None) if parsed.precision == "fp32" else samples(net, about, parsed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the summary says it too
        exported = export(
            net,
            parsed.to,
            normalise=parsed.normalise,
            temperature=parsed.temperature,
            precision=parsed.precision,
            calibration=calibration,
            test=test,
            overwrite=parsed.force,
        )
    print(printable_lines(str(exported)))


def temperature_line(about: About) -> str:
    """Return where the temperature comes from."""
    fitted = about.calibration
    if fitted is None:
        return (
            "temperature 1: probabilities are not calibrated, for lack of a finished run with enough held-out images "
            "(`mixmo train --validation`, or mixmo.calibrate before saving); give --temperature if you know it"
        )
    held_out = f"fitted on {fitted.samples} held-out images"
    source = held_out if fitted.samples else "as saved, not fitted on held-out images (see its model card)"
    limit = "; this is the upper limit: the network is no better than chance there" * (fitted.temperature >= T_MAX)
    caution = "; caution: these are too few to calibrate; hold out more" * (0 < fitted.samples < FEWEST)
    if fitted.samples and fitted.temperature == 1:  # where every image is classified correctly, see `fit_temperature`
        caution = "; caution: all are classified correctly, so that no temperature fits; hold out more"
    return f"temperature {fitted.temperature:.4g}, {source}{limit}{caution}"


def samples(net: Ensemble, about: About, parsed: Namespace) -> tuple[Tensor | None, Labelled | None]:
    """Return images for the ranges of int8, and test images to measure the accuracy, if the data set is there."""
    int8 = parsed.precision == "int8"
    try:
        dataset = data.load(about.dataset, parsed.data, train=int8) if about.dataset else None
        if dataset is None or about.classes not in (None, dataset.classes):
            raise UserError(f"{parsed.model} names no data set, or one with other classes; give the run directory")
        if is_run(Path(parsed.model)):
            warn_of_changes(Run.open(Path(parsed.model)), dataset)
        model = Model(Path(parsed.model), net, about, torch.device("cpu"), stored=False)
        calibration = sample(dataset.train, model, parsed.normalise, CALIBRATION)[0] if int8 else None
        return calibration, sample(dataset.test, model, parsed.normalise)
    except UserError as error:
        if int8:
            raise UserError(f"int8 needs training images ({error}); in Python, give mixmo.export any") from error
        print(printable(f"Top1 is not measured: {error}"), file=sys.stderr)
        return None, None


def sample(split: Split, model: Model, pixels: bool, count: int | None = None) -> Labelled:
    """Return images as the file takes them, and labels: `count` at random, or all that fit into memory."""
    about = model.about
    channels, height, width = about.size
    most = min(count or len(split.labels), len(split.labels), max(1, MEMORY // (4 * channels * height * width)))
    chosen = torch.randperm(len(split.labels), generator=torch.Generator().manual_seed(0))[:most].sort().values
    mean, std = ((0.0,) * channels, (1.0,) * channels) if pixels else (about.mean, about.std)
    parts = list(Split(split.images[chosen], split.labels[chosen]).batches(100))
    images = torch.cat([normalise(model.prepare(part.resident), mean, std) for part in parts])
    return images.contiguous(), torch.cat([part.labels for part in parts])
