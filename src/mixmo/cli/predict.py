"""mixmo predict MODEL PATHS... [--format csv|json|parquet] [--out FILE] [--calibrate-on FOLDER]"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch

from mixmo.calibration.posthoc import Calibration, calibrate
from mixmo.cli.arguments import parse, parser
from mixmo.cli.rows import Row, Rows, check_out, writing
from mixmo.engine import Runtime
from mixmo.evaluation.saved_models import Model, file_answers, open_model
from mixmo.hub.loading import MODEL, validation_calibration
from mixmo.inference.prediction import Prediction
from mixmo.inference.preparation import find_images
from mixmo.models.metadata import About
from mixmo.runs.directory import Run, is_run
from mixmo.utils.errors import UserError

UNCERTAINTY = ("entropy", "mutual_information", "disagreement", "energy")
COLUMNS = {
    **dict.fromkeys(("path", "label"), "str"),
    **dict.fromkeys(("probability", "calibrated_probability", *UNCERTAINTY), "float"),
    "set": "list",
    "abstain": "bool",
}


def main(arguments: list[str]) -> None:
    into = parser("predict", "LabelledLogits and their uncertainty for image files, a row each, written as they come.")
    into.add_argument("model", type=Path, help=MODEL)
    into.add_argument("paths", nargs="+", type=Path, help="image files, and folders of them at any depth")
    into.add_argument(
        "--format",
        type=Literal["csv", "json", "parquet"],
        default="csv",
        help="of the rows; in csv, sets are JSON arrays",
    )
    into.add_argument("--out", type=Path | None, default=None, help="file to write, FILE.part until it is complete")
    into.add_argument("--which", type=Literal["last", "best"], default="last", help="epoch of a run's weights")
    into.add_argument(
        "--calibrate-on",
        type=Path | None,
        default=None,
        help="held-out images to calibrate with: a folder of class folders, or a CSV of path,label; by default what "
        "was saved with the model, or the validation images of the run",
    )
    into.add_argument("--sets", type=Literal["lac", "aps", "raps"] | None, default=None, help="conformal method (lac)")
    into.add_argument("--level", type=float | None, default=None, help="how often a set holds the true class (0.9)")
    into.add_argument("--risk", type=float | None, default=None, help="most wrong answers, of those given (0.05)")
    into.add_argument("--device", default="auto", help="where to predict")
    parsed = parse(into, arguments)
    check_out(parsed.format, parsed.out)
    paths = list(find_images(parsed.paths))
    if not paths:
        raise UserError(f"there are no images in {', '.join(map(str, parsed.paths))}; give files, or folders of them")
    model = open_model(parsed.model, parsed.which, Runtime(device=parsed.device).resolve())
    calibration = calibrated(model, parsed)
    failed = write_all(model, calibration, paths, parsed)
    if failed:
        print(f"{failed} of {len(paths)} files skipped, {len(paths) - failed} predicted", file=sys.stderr)


def calibrated(model: Model, parsed: Namespace) -> Calibration | None:
    """Fitted on what the user gives, else on the run's validation images, else as saved; never on the test set."""
    asked = {"method": parsed.sets, "level": parsed.level, "risk": parsed.risk}
    settings = {name: value for name, value in asked.items() if value is not None}
    if parsed.calibrate_on is not None:
        return calibrate(*file_answers(model, parsed.calibrate_on, "calibrating on"), **settings)
    single_run = is_run(parsed.model) and len(model.nets) == 1
    if settings and single_run and Run.open(parsed.model).recipe.validation:
        return validation_calibration(Run.open(parsed.model), parsed.which, **settings)
    if settings:
        raise UserError(
            f"--{next(iter(settings)).replace('method', 'sets')} needs held-out images to fit to; give some with "
            "--calibrate-on FOLDER"
        )
    fitted = model.calibration
    if fitted is None or fitted.conformal is None:
        known = "no calibration: no calibrated probabilities," if fitted is None else "a temperature but no"
        remedy = "--calibrate-on FOLDER fits them to held-out images of known classes"
        print(f"{parsed.model} has {known} sets and abstain flags; {remedy}", file=sys.stderr)
    return fitted


def write_all(model: Model, calibration: Calibration | None, paths: Sequence[str], parsed: Namespace) -> int:
    """A row for every image that can be read; gives how many cannot."""
    failed = 0
    torch.manual_seed(0)  # for randomised sets: the same rows each time
    with ExitStack() as stack:
        rows: Rows | None = None  # nothing is left behind where nothing can be read
        for read in model.read(paths, "predicting"):
            failed += len(read.failed)
            if read.paths:
                rows = rows or stack.enter_context(writing(parsed.format, parsed.out, COLUMNS))
                rows.write(describe(read.paths, model(read.images, calibration), model.about))
    if failed == len(paths):
        raise UserError(f"none of the {failed} files can be read as an image; check the paths")
    return failed


def describe(paths: list[str], prediction: Prediction, about: About) -> list[Row]:
    """The rows of a batch."""
    names = about.classes or [str(k) for k in range(prediction.probs.shape[1])]
    columns: dict[str, list[Any]] = {
        "path": [path.encode(errors="backslashreplace").decode() for path in paths],  # a name may be no UTF-8
        "label": [names[k] for k in prediction.labels.tolist()],
        "probability": prediction.confidence.tolist(),
        "calibrated_probability": [None] * len(paths),
        **{name: getattr(prediction, name).tolist() for name in UNCERTAINTY},
        "set": [None] * len(paths),
        "abstain": [None] * len(paths),
    }
    if prediction.calibration is not None:
        columns["calibrated_probability"] = prediction.calibrated.amax(1).tolist()
        if prediction.calibration.conformal is not None:
            order_NK = prediction.probs.argsort(dim=1, descending=True)
            inside_NK = prediction.sets.gather(1, order_NK)
            pairs = zip(order_NK.tolist(), inside_NK.tolist(), strict=True)
            columns["set"] = [
                [names[k] for k, held in zip(order, inside, strict=True) if held] for order, inside in pairs
            ]
        if prediction.calibration.selective is not None:
            columns["abstain"] = prediction.abstain.tolist()
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
