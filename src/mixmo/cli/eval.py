"""mixmo eval MODEL... [--on IMAGES] [--source logits|weights] [--corruptions DIR] [--ood NAME] [--multiplex]"""

import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mixmo.cli import tables
from mixmo.cli.arguments import parse, parser
from mixmo.engine import Runtime
from mixmo.evaluation.labelled_images import ModelScores, score_models
from mixmo.evaluation.models import networks
from mixmo.evaluation.multiplex import MultiplexScores, score_multiplexed
from mixmo.evaluation.pipeline import check_different
from mixmo.evaluation.robustness import CorruptionScores, OodScores, corruptions_so_far, score_ood
from mixmo.evaluation.run_scores import RunScores, score_runs
from mixmo.hub.loading import MODEL
from mixmo.runs.directory import Run, is_run
from mixmo.utils.errors import UserError

ONE = ("--corruptions", "--ood")  # users may try to give several


class OtherScores(NamedTuple):
    """Scores of --corruptions, --ood and --multiplex, as far as they are computed."""

    models: list[str]
    saved: bool  # some are no runs
    corrupted: CorruptionScores | None = None
    ood: OodScores | None = None
    multiplexed: MultiplexScores | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and numbers, ready for JSON."""
        parts = {"corrupted": self.corrupted, "ood": self.ood, "multiplexed": self.multiplexed}
        found = {name: scores.to_dict() for name, scores in parts.items() if scores is not None}
        return {"models" if self.saved else "runs": self.models, **found}


def main(arguments: list[str]) -> None:
    into = parser(
        "eval",
        "Score a run directory, also one that has not ended, or a saved network. Several are scored as one ensemble; "
        "`mixmo compare` shows runs side by side.",
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
        "--ood",
        type=str | None,
        default=None,
        help="score OOD detection of this other data set instead: AUROC, AUPR, FPR95",
    )
    into.add_argument(
        "--multiplex",
        action="store_true",
        help="score multiplexed inference instead: accuracy and speed with 1, 2, ... M different images per pass",
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
        for scores in scored(parsed):  # noqa: B007 - the last one is printed
            pass
    finally:  # also what was scored before Ctrl-C
        if scores and parsed.json:
            print(json.dumps(scores.to_dict(), indent=2))
        elif scores:
            show(scores, tables.heading(parsed.models))


def scored(parsed: Namespace) -> Iterator[RunScores | ModelScores | OtherScores]:
    """Yield the scores, those of --corruptions, --ood and --multiplex as far as they are computed."""
    device, which = Runtime(device=parsed.device).resolve(), parsed.which or "last"
    paths = [path for given in parsed.models for path in networks(given)]
    check_different(paths)
    saved = not all(map(is_run, paths))
    if parsed.on is not None and parsed.corruptions is not None:
        raise UserError("--corruptions brings its own labelled images; leave --on out")
    if not (parsed.corruptions or parsed.ood or parsed.multiplex):
        if parsed.on is not None or saved:
            yield score_models(parsed.models, parsed.on, which, device, parsed.data)
        else:
            epochs = None if parsed.which is None else (parsed.which,)
            yield score_runs([Run.open(path) for path in paths], parsed.source, device, parsed.data, epochs)
        return
    scores = OtherScores([str(path) for path in paths], saved)
    if parsed.corruptions is not None:
        for corrupted in corruptions_so_far(paths, parsed.corruptions, which, device, parsed.data):
            yield (scores := scores._replace(corrupted=corrupted))
    if parsed.ood is not None:
        found = score_ood(paths, parsed.ood, which, device, parsed.data, parsed.source, parsed.on)
        yield (scores := scores._replace(ood=found))
    if parsed.multiplex:
        yield scores._replace(multiplexed=score_multiplexed(paths, which, device, parsed.data, parsed.on))


def show(scores: RunScores | ModelScores | OtherScores, title: str) -> None:
    """Print the scores as tables."""
    match scores:
        case RunScores():
            tables.print_report(scores, title)
        case ModelScores():
            tables.print_model_scores(scores, title)
        case OtherScores():
            if scores.corrupted:
                tables.print_corruptions(scores.corrupted, title)
            if scores.ood:
                tables.print_ood(scores.ood, title)
            if scores.multiplexed:
                tables.print_multiplexed(scores.multiplexed, title)
