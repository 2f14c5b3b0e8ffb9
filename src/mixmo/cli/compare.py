"""mixmo compare RUN RUN... [--which last|best] [--sort SCORE] [--json]"""

from pathlib import Path
from typing import Literal

from mixmo.cli.arguments import parse, parser
from mixmo.cli.console import print_json
from mixmo.cli.tables import COLUMNS, print_comparison
from mixmo.evaluation.comparison import compare_runs


def main(arguments: list[str]) -> None:
    into = parser(
        "compare",
        "Scores of runs side by side, the differences of their recipes, mean and standard deviation over seeds.",
    )
    into.add_argument("runs", nargs="+", type=Path, help="run directories; their stored scores are enough")
    into.add_argument(
        "--which", type=Literal["last", "best"], default="last", help="epoch of the scores of finished runs"
    )
    into.add_argument(
        "--sort",
        type=Literal[tuple(COLUMNS)],
        help="score to sort by, the best run first; by default in the given order",
    )
    into.add_argument("--json", action="store_true", help="print JSON")
    parsed = parse(into, arguments)
    found = compare_runs(parsed.runs, parsed.which, parsed.sort)
    if parsed.json:
        print_json(found.to_dict())
    else:
        print_comparison(found)
