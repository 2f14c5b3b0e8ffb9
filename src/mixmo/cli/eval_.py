"""mixmo eval MODEL... [--on IMAGES] [--source logits|weights] [--corruptions DIR] [--ood NAME] [--multiplex]"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import Namespace

from mixmo.cli.arguments import parse, parser
from mixmo.cli.tables import print_answers, print_corruptions, print_multiplexed, print_ood, print_report
from mixmo.engine import Runtime
from mixmo.errors import UserError
from mixmo.evaluation import check_different, score_answers, score_runs, stack
from mixmo.hub.load import MODEL
from mixmo.hub.model import dataset_answers, labelled_answers, networks, open_model
from mixmo.multiplex import score_multiplexed
from mixmo.progress import track
from mixmo.robustness import corruptions_so_far, score_ood
from mixmo.runs import WHICH, Run, is_run

PRINTERS = {"corrupted": print_corruptions, "ood": print_ood, "multiplexed": print_multiplexed}
ONE = ("--corruptions", "--ood")  # of which a user may well want several


def main(arguments: list[str]) -> None:
    into = parser(
        "eval",
        "Score a run directory, also one that has not ended, or a saved network; several are scored as one ensemble.",
    )
    into.add_argument("models", nargs="+", type=Path, help=f"each a {MODEL}")
    into.add_argument(
        "--on",
        type=str | None,
        default=None,
        help="labelled images to score on: a folder of class folders, a CSV of path,label, or a data set by its name "
        "(its test images); by default the test set of the run, or of what the saved network was trained on",
    )
    into.add_argument(
        "--source", type=Literal["logits", "weights"], default="logits", help="stored logits, or predict again"
    )
    into.add_argument(
        "--corruptions", type=Path | None, default=None, help="score on the corrupted test set in this folder instead"
    )
    into.add_argument(
        "--ood", type=str | None, default=None, help="score how well this other data set is told apart instead"
    )
    into.add_argument(
        "--multiplex", action="store_true", help="score on 1, 2, ... M images a pass, with the speed, instead"
    )
    into.add_argument(
        "--which",
        type=Literal["last", "best"] | None,
        default=None,
        help="epoch of runs to score; by default both, and for --on, --corruptions, --ood and --multiplex the last",
    )
    into.add_argument("--json", action="store_true", help="print JSON")
    into.add_argument("--device", default="auto", help="where to predict")
    into.add_argument("--data", type=Path | None, default=None, help="folder of the data sets, to predict")
    parsed = parse(into, arguments)
    for option in ONE:
        if sum(word.partition("=")[0] == option for word in arguments) > 1:
            raise UserError(f"{option} is given twice, and one is scored at a time; give the command once for each")
    scores: dict[str, Any] = {}
    try:
        for scores in scored(parsed):  # noqa: B007 - they are wanted afterwards
            pass
    finally:  # also what was scored before Ctrl-C
        if scores and parsed.json:
            print(json.dumps(scores, indent=2))
        elif scores:
            show(scores, " + ".join(str(path) for path in parsed.models))


def scored(parsed: Namespace) -> Iterator[dict[str, Any]]:
    """What is asked for, as far as it is there."""
    device, which = Runtime(device=parsed.device).resolve(), parsed.which or "last"
    paths = [path for given in parsed.models for path in networks(given)]
    check_different(paths)
    asked = {"--corruptions": parsed.corruptions, "--ood": parsed.ood, "--multiplex": parsed.multiplex}
    others = [option for option, value in asked.items() if value]
    saved = [path for path in paths if not is_run(path)]
    if parsed.on is not None and others:
        raise UserError(f"--on and {others[0]} are scored one at a time; give the command once for each")
    if not others:
        if parsed.on is not None or saved:
            yield score_models(parsed.models, parsed.on, which, device, parsed.data)
        else:
            epochs = WHICH if parsed.which is None else (parsed.which,)
            yield score_runs([Run(path) for path in paths], parsed.source, device, parsed.data, epochs)
        return
    scores: dict[str, Any] = {"models" if saved else "runs": [str(path) for path in paths]}
    if parsed.corruptions is not None:
        for scores["corrupted"] in corruptions_so_far(paths, parsed.corruptions, which, device, parsed.data):
            yield scores
    if parsed.ood is not None:
        scores["ood"] = score_ood(paths, parsed.ood, which, device, parsed.data, parsed.source)
        yield scores
    if parsed.multiplex:
        scores["multiplexed"] = score_multiplexed(paths, which, device, parsed.data)
        yield scores


def show(scores: dict[str, Any], title: str) -> None:
    """The scores as tables."""
    if "on" in scores:
        print_answers(scores, title)
    elif "parameters" in scores:
        print_report(scores, title)
    for kind, show_kind in PRINTERS.items():
        if kind in scores:
            show_kind(scores[kind], title)


def score_models(
    paths: Sequence[Path], on: str | None, which: str, device: torch.device, root: Path | None
) -> dict[str, Any]:
    """Scores on labelled images; those of several models as one ensemble."""
    models = [open_model(path, which, device) for path in paths]
    for model in models:
        if model.about.classes != models[0].about.classes:
            raise UserError(f"{model.path} knows other classes than {paths[0]}; an ensemble needs the same")
    answer = dataset_answers if on is None else labelled_answers  # a folder may happen to have the data set's name
    on = models[0].trained_on if on is None else on
    answers = stack([answer(model, on, root) for model in track(models, "models")], paths)
    if len(answers.labels) < 2:
        raise UserError(f"{on} has one image, and scores need two at least; give more")
    calibration = models[0].calibration if len(models) == 1 else None
    torch.manual_seed(0)  # for randomised sets: the same scores each time
    scores = score_answers(*answers, calibration)
    return {"models": [str(path) for path in paths], "on": on, "images": len(answers.labels), **scores}
