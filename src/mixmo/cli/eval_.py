"""mixmo eval DIR... [--json] [--source logits|weights]"""

import json
from pathlib import Path
from typing import Literal

from mixmo.cli.arguments import parse, parser
from mixmo.cli.tables import print_report
from mixmo.engine import Runtime
from mixmo.evaluation import score_runs
from mixmo.runs import Run


def main(arguments: list[str]) -> None:
    into = parser("eval", "Score a run directory; several are scored as one ensemble.")
    into.add_argument("runs", nargs="+", type=Path, help="run directories")
    into.add_argument(
        "--source", type=Literal["logits", "weights"], default="logits", help="stored logits, or predict again"
    )
    into.add_argument("--json", action="store_true", help="print JSON")
    into.add_argument("--device", default="auto", help="where to predict again")
    into.add_argument("--data", type=Path | None, default=None, help="folder of the data sets, to predict again")
    parsed = parse(into, arguments)
    runs = [Run.open(path) for path in parsed.runs]
    scores = score_runs(runs, parsed.source, Runtime(device=parsed.device).resolve(), parsed.data)
    if parsed.json:
        print(json.dumps(scores, indent=2))
    else:
        print_report(scores, " + ".join(scores["runs"]))
