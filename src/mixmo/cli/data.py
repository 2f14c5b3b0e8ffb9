"""mixmo data get NAME --to DIR | check [NAME] [--data DIR] | corrupt NAME --to DIR [--data DIR] [--severities 1 ...]"""

import time
from collections.abc import Callable
from pathlib import Path

from mixmo.cli.arguments import parse, parser
from mixmo.data.catalog import where
from mixmo.data.check import check, held
from mixmo.data.corrupted import SEVERITIES
from mixmo.data.corruptions.style import write_style
from mixmo.data.download import get
from mixmo.engine import Runtime
from mixmo.utils.errors import UserError, unknown


def get_(arguments: list[str]) -> None:
    """download a data set from its official place"""
    into = parser("data get", "Download and unpack cifar10, cifar100, tiny-imagenet, cifar10-c or cifar100-c.")
    into.add_argument("name", help="data set")
    into.add_argument("--to", type=Path, required=True, help="data directory to put it into")
    parsed = parse(into, arguments)
    print(get(parsed.name, parsed.to))


def check_(arguments: list[str]) -> None:
    """verify what is on the disk: counts, classes, checksums"""
    into = parser("data check", "Verify a data set on the disk: counts, classes, checksums. Exit status 2 if a fault.")
    into.add_argument(
        "name",
        nargs="?",
        help="data set (`mixmo list datasets`), cifar10-c, cifar10-c-style or folder:PATH@SIZE; by default all that "
        "are in the data directory",
    )
    into.add_argument("--data", type=Path | None, default=None, help="data directory; else $MIXMO_DATA, else ./data")
    parsed = parse(into, arguments)
    root = where(parsed.data)
    names = [parsed.name] if parsed.name else held(root)
    if not names:
        raise UserError(f"there is no data set in {root}; `mixmo data get cifar100 --to {root}` puts one there")
    faults = []
    for name in names:
        findings = check(name, root)
        faults += findings.faults
        if not findings.faults:
            print(findings.summary)
    if faults:
        raise UserError("\nmixmo: ".join(faults))


def corrupt_(arguments: list[str]) -> None:
    """generate a CIFAR-C-style test set"""
    into = parser(
        "data corrupt",
        "Write the test set of cifar10 or cifar100 under 19 corruptions into DIR/NAME-c-style, in CIFAR-C's layout. "
        "It is made by the published formulas, but it is not CIFAR-C.",
    )
    into.add_argument("name", help="cifar10 or cifar100")
    into.add_argument("--to", type=Path, required=True, help="folder to make NAME-c-style in")
    into.add_argument("--data", type=Path | None, default=None, help="data directory; else $MIXMO_DATA, else ./data")
    into.add_argument("--severities", nargs="+", type=int, default=list(SEVERITIES), help="all five by default")
    into.add_argument("--seed", type=int, default=0, help="seed of every draw")
    into.add_argument("--device", default="auto", help="where to compute")
    parsed = parse(into, arguments)
    device = Runtime(device=parsed.device).resolve()
    began = time.monotonic()
    folder = write_style(parsed.name, parsed.to, parsed.data, parsed.severities, parsed.seed, device)
    print(f"{folder} ({time.monotonic() - began:.0f} s)")


VERBS: dict[str, Callable[[list[str]], None]] = {"get": get_, "check": check_, "corrupt": corrupt_}


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:8} {verb.__doc__}" for name, verb in VERBS.items()]
        print("usage: mixmo data VERB NAME ...\n\n" + "\n".join(lines) + "\n\n`mixmo data VERB --help` tells more.")
        return
    if arguments[0] not in VERBS:
        raise unknown("data command", arguments[0], VERBS)
    VERBS[arguments[0]](arguments[1:])
