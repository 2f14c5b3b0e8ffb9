"""mixmo report RUN... [--out FILE] [--which last|best] [--data DIR]"""

import sys
from pathlib import Path
from typing import Literal

from mixmo.cli.arguments import parse, parser
from mixmo.cli.console import print_line
from mixmo.reports.build import NAME, report
from mixmo.utils.text import printable

LISTED = 8  # sentences about what is missing; the page has all


def main(arguments: list[str]) -> None:
    into = parser(
        "report",
        "Write one HTML page that opens offline: scores and the paper's, curves, calibration, risk, classes, images on "
        "which members disagree, filters. For several runs: scores, recipes and curves side by side. The report of an "
        "unfinished or damaged run shows what is available.",
    )
    into.add_argument(
        "runs", nargs="+", type=Path, help="run directories; the first one is the baseline of differences"
    )
    into.add_argument(
        "--out",
        type=Path,
        help=f"file to write (default: {NAME} in the run directory; for several runs, in the current folder)",
    )
    into.add_argument("--which", type=Literal["last", "best"], default="last", help="epoch of finished runs to show")
    into.add_argument(
        "--data", type=Path, help="folder of the data sets, for images (default: $MIXMO_DATA, else ./data)"
    )
    parsed = parse(into, arguments)
    out = parsed.out or (parsed.runs[0] / NAME if len(parsed.runs) == 1 else Path(NAME))
    page = report(*parsed.runs, which=parsed.which, data=parsed.data)
    page.save(out)
    for sentence in page.missing[:LISTED]:
        print(f"missing: {printable(sentence)}", file=sys.stderr)
    if len(page.missing) > LISTED:
        print(f"missing: {len(page.missing) - LISTED} more, listed on the page", file=sys.stderr)
    print_line(f"{printable(str(out))} ({len(page.html.encode()) / 1e6:.1f} MB)")
