"""mixmo eval MODEL... [--on IMAGES] [--source logits|weights] [--corruptions DIR] [--ood NAME] [--multiplex]"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from mixmo.cli import tables
from mixmo.cli.arguments import parse, parser
from mixmo.cli.console import print_json
from mixmo.engine import Runtime
from mixmo.evaluation.model_scores import score_models
from mixmo.evaluation.models import networks
from mixmo.evaluation.multiplex import score_multiplexed
from mixmo.evaluation.pipeline import check_different
from mixmo.evaluation.robustness import corruptions_so_far, score_ood
from mixmo.evaluation.run_scores import score_runs
from mixmo.hub.loading import MODEL
from mixmo.runs.directory import Run, is_run
from mixmo.utils.errors import UserError

Found = dict[str, Any]  # as JSON
Tables = list[Callable[[str], None]]  # print them under a title


def main(arguments: list[str]) -> None:
    into = parser(
        "eval",
        "Score a run directory, also one that has not ended, or a saved network. Several are scored as one ensemble; "
        "`mixmo compare` shows runs side by side.",
    )
    into.add_argument("models", nargs="+", type=Path, help=f"each a {MODEL}")
    into.add_argument(
        "--on",
        help="labelled images to score on: a folder of class folders, a CSV of path,label, or a data set by its name "
        "(its test images), also with --ood or --multiplex; by default the test set of the run, or of what the saved "
        "network was trained on",
    )
    into.add_argument(
        "--source", type=Literal["logits", "weights"], default="logits", help="stored logits, or predict again"
    )
    into.add_argument("--corruptions", type=Path, help="score on the corrupted test set in this folder instead")
    into.add_argument("--ood", help="score OOD detection of this other data set instead: AUROC, AUPR, FPR95")
    into.add_argument(
        "--multiplex",
        action="store_true",
        help="score multiplexed inference instead: accuracy and speed with 1, 2, ... M different images per pass",
    )
    into.add_argument(
        "--which",
        type=Literal["last", "best"],
        help="epoch of runs to score; by default both, and for --on, --corruptions, --ood and --multiplex the last",
    )
    into.add_argument("--json", action="store_true", help="print JSON")
    into.add_argument("--device", default="auto", help="where to predict")
    into.add_argument("--data", type=Path, help="folder of the data sets, to predict")
    parsed = parse(into, arguments)
    for option in ("--corruptions", "--ood"):  # users may try to give several
        if sum(word.partition("=")[0] == option for word in arguments) > 1:
            raise UserError(f"{option} is given twice, and one is scored at a time; give the command once for each")
    several = f"ensemble of {len(parsed.models)}: " if len(parsed.models) > 1 else ""
    title = several + " + ".join(map(str, parsed.models))
    found, shown = Found(), Tables()
    try:
        for found, shown in scored(parsed):  # noqa: B007 - the last one is printed
            pass
    finally:  # also what was scored before Ctrl-C
        if found and parsed.json:
            print_json(found)
        else:
            for show in shown:
                show(title)


def scored(parsed: Namespace) -> Iterator[tuple[Found, Tables]]:
    """Yield the scores, those of --corruptions, --ood and --multiplex as far as they are computed."""
    device, which = Runtime(device=parsed.device).resolve(), parsed.which or "last"
    paths = [path for given in parsed.models for path in networks(given)]
    check_different(paths)
    saved = not all(map(is_run, paths))
    if parsed.on is not None and parsed.corruptions is not None:
        raise UserError("--corruptions brings its own labelled images; leave --on out")
    if not (parsed.corruptions or parsed.ood or parsed.multiplex):
        if parsed.on is not None or saved:
            of_models = score_models(parsed.models, parsed.on, which, device, parsed.data)
            yield of_models.to_dict(), [partial(tables.print_model_scores, of_models)]
        else:
            epochs = None if parsed.which is None else (parsed.which,)
            of_runs = score_runs([Run.open(path) for path in paths], parsed.source, device, parsed.data, epochs)
            yield of_runs.to_dict(), [partial(tables.print_report, of_runs)]
        return
    found: Found = {"models" if saved else "runs": [str(path) for path in paths]}
    shown: Tables = []
    if parsed.corruptions is not None:
        for corrupted in corruptions_so_far(paths, parsed.corruptions, which, device, parsed.data):
            found["corrupted"], shown = corrupted.to_dict(), [partial(tables.print_corruptions, corrupted)]
            yield found, shown
    if parsed.ood is not None:
        ood = score_ood(paths, parsed.ood, which, device, parsed.data, parsed.source, parsed.on)
        found["ood"], shown = ood.to_dict(), [*shown, partial(tables.print_ood, ood)]
        yield found, shown
    if parsed.multiplex:
        multiplexed = score_multiplexed(paths, which, device, parsed.data, parsed.on)
        yield {**found, "multiplexed": multiplexed.to_dict()}, [*shown, partial(tables.print_multiplexed, multiplexed)]
