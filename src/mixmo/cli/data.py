"""mixmo data get NAME --to DIR | check [NAME] [--data DIR] | corrupt NAME --to DIR [--data DIR] [--severities 1 ...]"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from mixmo.cli.arguments import parse, parser, subcommand
from mixmo.cli.console import print_line
from mixmo.data.catalog import data_directory
from mixmo.data.check import check, held
from mixmo.data.corrupted import SEVERITIES
from mixmo.data.corruptions.style import write_style
from mixmo.data.download import get
from mixmo.engine import Runtime
from mixmo.recipes.fields import at_least
from mixmo.utils.errors import UserError


def get_(arguments: list[str]) -> None:
    """download a data set from its official site"""
    into = parser("data get", "Download and unpack cifar10, cifar100, tiny-imagenet, cifar10-c or cifar100-c.")
    into.add_argument("name", help="data set")
    into.add_argument("--to", type=Path, required=True, help="data directory")
    parsed = parse(into, arguments)
    print(get(parsed.name, parsed.to))


def check_(arguments: list[str]) -> None:
    """check a data set on disk: counts, classes, checksums, unreadable images"""
    into = parser(
        "data check",
        "Check a data set on disk: counts, classes, checksums; of a folder, images per class and unreadable files. "
        "Exit status 2 if there is a fault.",
    )
    into.add_argument(
        "name",
        nargs="?",
        help="data set (`mixmo list datasets`), cifar10-c, cifar10-c-style or folder:PATH; by default all in the data "
        "directory",
    )
    into.add_argument("--data", type=Path, help="data directory; else $MIXMO_DATA, else ./data")
    parsed = parse(into, arguments)
    root = data_directory(parsed.data)
    names = [parsed.name] if parsed.name else held(root)
    if not names:
        raise UserError(f"there is no data set in {root}; `mixmo data get cifar100 --to {root}` downloads one")
    faults = []
    for name in names:
        findings = check(name, root)
        faults += findings.faults
        if findings.summary:
            print_line(findings.summary)
    if faults:
        raise UserError("\nmixmo: ".join(faults))


def corrupt_(arguments: list[str]) -> None:
    """generate a test set in the style of CIFAR-C"""
    into = parser(
        "data corrupt",
        "Write the test set of cifar10 or cifar100 under 19 corruptions into PATH/NAME-c-style, in CIFAR-C's layout. "
        "By the published formulas, but it is not CIFAR-C.",
    )
    into.add_argument("name", help="cifar10 or cifar100")
    into.add_argument("--to", type=Path, required=True, help="folder in which NAME-c-style is made")
    into.add_argument("--data", type=Path, help="data directory; else $MIXMO_DATA, else ./data")
    into.add_argument("--severities", nargs="+", type=int, default=list(SEVERITIES), help="all five by default")
    into.add_argument("--seed", type=Annotated[int, at_least(0)], default=0, help="seed of all random draws")
    into.add_argument("--device", default="auto", help="device of the computation")
    parsed = parse(into, arguments)
    device = Runtime(device=parsed.device).resolve()
    began = time.monotonic()
    folder = write_style(parsed.name, parsed.to, parsed.data, parsed.severities, parsed.seed, device)
    print(f"{folder} ({time.monotonic() - began:.0f} s)")


VERBS: dict[str, Callable[[list[str]], None]] = {"get": get_, "check": check_, "corrupt": corrupt_}


def main(arguments: list[str]) -> None:
    verb, words = subcommand("data", "VERB", {name: str(verb.__doc__) for name, verb in VERBS.items()}, arguments)
    VERBS[verb](words)
