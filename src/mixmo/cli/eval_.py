"""mixmo eval DIR... [--json] [--source logits|weights] [--corruptions DIR] [--ood NAME] [--multiplex]"""

import json
from pathlib import Path
from typing import Any, Literal

from mixmo.cli.arguments import parse, parser
from mixmo.cli.tables import print_corruptions, print_multiplexed, print_ood, print_report
from mixmo.engine import Runtime
from mixmo.errors import UserError
from mixmo.evaluation import check_different, score_multiplexed, score_runs
from mixmo.robustness import score_corruptions, score_ood
from mixmo.runs import WHICH, Run

PRINTERS = {"corrupted": print_corruptions, "ood": print_ood, "multiplexed": print_multiplexed}
ONE = ("--corruptions", "--ood")  # of which a user may well want several


def main(arguments: list[str]) -> None:
    into = parser("eval", "Score a run directory; several are scored as one ensemble.")
    into.add_argument("runs", nargs="+", type=Path, help="run directories")
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
        "--multiplex", action="store_true", help="score 1, 2, ... M different images a pass, with their speed, instead"
    )
    into.add_argument(
        "--which",
        type=Literal["last", "best"] | None,
        default=None,
        help="epoch to score; by default both, and for --corruptions, --ood and --multiplex the last",
    )
    into.add_argument("--json", action="store_true", help="print JSON")
    into.add_argument("--device", default="auto", help="where to predict")
    into.add_argument("--data", type=Path | None, default=None, help="folder of the data sets, to predict")
    parsed = parse(into, arguments)
    for option in ONE:
        if sum(word.partition("=")[0] == option for word in arguments) > 1:
            raise UserError(f"{option} is given twice, and one is scored at a time; give the command once for each")
    runs = [Run.open(path) for given in parsed.runs for path in Run.open(given).networks()]
    check_different(runs)
    device, which = Runtime(device=parsed.device).resolve(), parsed.which or "last"
    title = " + ".join(str(path) for path in parsed.runs)
    scores: dict[str, Any] = {"runs": [str(run.path) for run in runs]}
    if parsed.corruptions is not None:
        scores["corrupted"] = score_corruptions(runs, parsed.corruptions, which, device)
    if parsed.ood is not None:
        scores["ood"] = score_ood(runs, parsed.ood, which, device, parsed.data, parsed.source)
    if parsed.multiplex:
        scores["multiplexed"] = score_multiplexed(runs, which, device, parsed.data)
    if len(scores) == 1:
        epochs = WHICH if parsed.which is None else (parsed.which,)
        scores = score_runs(runs, parsed.source, device, parsed.data, epochs)
    if parsed.json:
        print(json.dumps(scores, indent=2))
    elif "parameters" in scores:
        print_report(scores, title)
    else:
        for kind, show in PRINTERS.items():
            if kind in scores:
                show(scores[kind], title)
