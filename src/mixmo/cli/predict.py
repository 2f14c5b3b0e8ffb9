"""mixmo predict MODEL PATHS... [--format csv|json|parquet] [--out FILE] [--calibrate-on FOLDER]"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch

from mixmo.calibration.posthoc import Calibration, calibrate
from mixmo.calibration.selective import fewest_for_risk
from mixmo.cli.arguments import parse, parser
from mixmo.cli.calibration_options import add_calibration
from mixmo.cli.rows import Row, Write, check_out, writing
from mixmo.engine import Runtime
from mixmo.evaluation.images import FileImages, read_files
from mixmo.evaluation.models import Model, open_models
from mixmo.evaluation.pipeline import predict_images
from mixmo.hub.loading import MODEL, validation_calibration
from mixmo.inference.naming import named_sets, names_or_numbers
from mixmo.inference.predict import predict
from mixmo.inference.prediction import Prediction
from mixmo.inference.preparation import find_images
from mixmo.models.metadata import About
from mixmo.runs.directory import Run, is_run
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work
from mixmo.utils.text import printable

UNCERTAINTY = ("entropy", "mutual_information", "disagreement", "energy")
COLUMNS = {
    **dict.fromkeys(("path", "label"), "string"),
    **dict.fromkeys(("probability", "calibrated_probability", *UNCERTAINTY), "double"),
    "set": "list",
    "abstain": "bool",
}


def main(arguments: list[str]) -> None:
    into = parser(
        "predict", "Predict image files: one row each with the class, its probability and uncertainty, written at once."
    )
    into.add_argument("model", type=Path, help=MODEL)
    into.add_argument("paths", nargs="+", type=Path, help="image files, and folders of them at any depth")
    into.add_argument(
        "--format",
        type=Literal["csv", "json", "parquet"],
        help="of the rows, by default that of the suffix of --out, or csv, in which prediction sets are JSON arrays",
    )
    into.add_argument("--out", type=Path, help="file to write, FILE.part until it is complete")
    into.add_argument("--which", type=Literal["last", "best"], default="last", help="epoch of a run's weights")
    add_calibration(into)
    into.add_argument("--device", default="auto", help="where to predict")
    parsed = parse(into, arguments)
    parsed.format = check_out(parsed.format, parsed.out)
    paths = list(find_images(parsed.paths))
    models = open_models([parsed.model], parsed.which, Runtime(device=parsed.device).resolve())
    calibration = calibrated(models, parsed)
    if calibration is not None and calibration.selective is not None and calibration.selective.coverage == 0:
        print(no_guarantee(calibration), file=sys.stderr)
    failed = write_all(models, calibration, paths, parsed)
    if failed:
        print(f"{failed} of {len(paths)} files skipped, {len(paths) - failed} predicted", file=sys.stderr)


def calibrated(models: Sequence[Model], parsed: Namespace) -> Calibration | None:
    """Fit to what the user gives, else to the run's validation images, else take the saved one; never the test set."""
    given = {"method": parsed.sets, "level": parsed.level, "risk": parsed.risk}
    settings = {name: value for name, value in given.items() if value is not None}
    if parsed.calibrate_on is not None:
        held_out = predict_images(models, FileImages(parsed.calibrate_on), "calibrating on images")
        return calibrate(*held_out, **settings)
    single_run = is_run(parsed.model) and len(models) == 1
    if settings and single_run and Run.open(parsed.model).recipe.validation:
        return validation_calibration(Run.open(parsed.model), parsed.which, **settings)
    if settings:
        option = next(iter(settings)).replace("method", "sets")
        raise UserError(f"--{option} needs held-out images to fit to; give some with --calibrate-on FOLDER")
    fitted = models[0].about.calibration if len(models) == 1 else None
    if fitted is None or fitted.conformal is None:
        known = "no calibration: no calibrated probabilities," if fitted is None else "a temperature but no"
        remedy = "--calibrate-on FOLDER fits them to held-out images of known classes"
        sentence = f"{parsed.model} has {known} prediction sets and abstain flags; {remedy}"
        print(printable(sentence), file=sys.stderr)
    return fitted


def no_guarantee(calibration: Calibration) -> str:
    """Say why every image is marked as abstained, and how many held-out images are needed at least."""
    samples, selective = calibration.samples, calibration.selective
    assert selective is not None
    needed = fewest_for_risk(selective.risk, selective.delta)
    least = f" (at least {needed:,})" if samples < needed else ""
    return (
        f"a selective risk of at most {100 * selective.risk:g} % cannot be guaranteed with these {samples:,} held-out "
        f"images, so abstain is true for every image; calibrate on more of them{least}, or give a larger --risk"
    )


def write_all(models: Sequence[Model], calibration: Calibration | None, paths: Sequence[str], parsed: Namespace) -> int:
    """Write a row for every image that can be read; return how many cannot."""
    nets, model, skipped = [model.net for model in models], models[0], set[str]()
    torch.manual_seed(0)  # for randomised sets: the same rows each time
    with ExitStack() as stack, Work("predicting images", len(paths)) as work:
        write: Write | None = None  # no file is made where nothing can be read
        for read in read_files(paths, model, model.batch, work, skipped):
            if read.paths:
                write = write or stack.enter_context(writing(parsed.format, parsed.out, COLUMNS))
                prediction = predict(nets, read.images, calibration=calibration, batch_size=model.batch)
                write(describe(read.paths, prediction, model.about))
    if write is None:
        raise UserError(f"no image can be read in {', '.join(map(str, parsed.paths))}; give image files, or folders")
    return len(skipped)


def describe(paths: list[str], prediction: Prediction, about: About) -> list[Row]:
    """Return the rows of a batch."""
    names = names_or_numbers(about.classes, prediction.probs.shape[1])
    columns: dict[str, Any] = dict.fromkeys(COLUMNS, [None] * len(paths)) | {
        "path": [path.encode(errors="backslashreplace").decode() for path in paths],  # a name may be no UTF-8
        "label": [names[k] for k in prediction.labels.tolist()],
        "probability": prediction.confidence.tolist(),
        **{name: getattr(prediction, name).tolist() for name in UNCERTAINTY},
    }
    if calibration := prediction.calibration:
        columns["calibrated_probability"] = prediction.calibrated.amax(1).tolist()
        if calibration.conformal is not None:
            columns["set"] = named_sets(prediction, names)
        if calibration.selective is not None:
            columns["abstain"] = prediction.abstain.tolist()
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
