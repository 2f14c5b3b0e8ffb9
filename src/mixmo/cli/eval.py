"""mixmo eval MODEL... [--on IMAGES] [--source logits|weights] [--corruptions DIR] [--ood NAME] [--multiplex]"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jsonargparse import Namespace

from mixmo.cli.arguments import parse, parser
from mixmo.cli.tables import print_answers, print_corruptions, print_multiplexed, print_ood, print_report
from mixmo.engine import Runtime
from mixmo.evaluation.labelled_images import ModelScores, score_models
from mixmo.evaluation.multiplex import MultiplexScores, score_multiplexed
from mixmo.evaluation.robustness import CorruptionScores, OodScores, corruptions_so_far, score_ood
from mixmo.evaluation.run_scores import RunScores, check_different, score_runs
from mixmo.evaluation.saved_models import networks
from mixmo.hub.loading import MODEL
from mixmo.runs.directory import WHICH, Run, is_run
from mixmo.utils.errors import UserError

ONE = ("--corruptions", "--ood")  # of which a user may well want several


class OtherScores(NamedTuple):
    """Of what was asked for instead, as far as it is there."""

    models: list[str]
    saved: bool  # some of them, at least; else all are runs
    corrupted: CorruptionScores | None = None
    ood: OodScores | None = None
    multiplexed: MultiplexScores | None = None

    def to_dict(self) -> dict[str, Any]:
        asked = {"corrupted": self.corrupted, "ood": self.ood, "multiplexed": self.multiplexed}
        found = {name: scores.to_dict() for name, scores in asked.items() if scores is not None}
        return {"models" if self.saved else "runs": self.models, **found}


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
        "(its test images), also with --ood or --multiplex; by default the test set of the run, or of what the saved "
        "network was trained on",
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
    scores: RunScores | ModelScores | OtherScores | None = None
    try:
        for scores in scored(parsed):  # noqa: B007 - they are wanted afterwards
            pass
    finally:  # also what was scored before Ctrl-C
        if scores and parsed.json:
            print(json.dumps(scores.to_dict(), indent=2))
        elif scores:
            show(scores, " + ".join(str(path) for path in parsed.models))


def scored(parsed: Namespace) -> Iterator[RunScores | ModelScores | OtherScores]:
    """What is asked for, as far as it is there."""
    device, which = Runtime(device=parsed.device).resolve(), parsed.which or "last"
    paths = [path for given in parsed.models for path in networks(given)]
    check_different(paths)
    asked = {"--corruptions": parsed.corruptions, "--ood": parsed.ood, "--multiplex": parsed.multiplex}
    others = [option for option, value in asked.items() if value]
    saved = [path for path in paths if not is_run(path)]
    if parsed.on is not None and parsed.corruptions is not None:
        raise UserError("--corruptions brings its own labelled images; leave --on out")
    if not others:
        if parsed.on is not None or saved:
            yield score_models(parsed.models, parsed.on, which, device, parsed.data)
        else:
            epochs = WHICH if parsed.which is None else (parsed.which,)
            yield score_runs([Run.open(path) for path in paths], parsed.source, device, parsed.data, epochs)
        return
    scores = OtherScores([str(path) for path in paths], saved=bool(saved))
    if parsed.corruptions is not None:
        for corrupted in corruptions_so_far(paths, parsed.corruptions, which, device, parsed.data):
            scores = scores._replace(corrupted=corrupted)
            yield scores
    if parsed.ood is not None:
        found = score_ood(paths, parsed.ood, which, device, parsed.data, parsed.source, parsed.on)
        scores = scores._replace(ood=found)
        yield scores
    if parsed.multiplex:
        yield scores._replace(multiplexed=score_multiplexed(paths, which, device, parsed.data, parsed.on))


def show(scores: RunScores | ModelScores | OtherScores, title: str) -> None:
    """The scores as tables."""
    match scores:
        case RunScores():
            print_report(scores, title)
        case ModelScores():
            print_answers(scores, title)
        case OtherScores():
            if scores.corrupted:
                print_corruptions(scores.corrupted, title)
            if scores.ood:
                print_ood(scores.ood, title)
            if scores.multiplexed:
                print_multiplexed(scores.multiplexed, title)
