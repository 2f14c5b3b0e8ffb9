"""mixmo list [recipes|models|masks|datasets|metrics]"""

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from mixmo.cli.arguments import parse, parser
from mixmo.data import DATASETS
from mixmo.masks import MASKS
from mixmo.metrics import DIVERSITY, METRICS
from mixmo.models import FAMILIES
from mixmo.recipes import METHODS, PROTOCOLS


def first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0]


def recipes() -> dict[str, str]:
    return {
        f"{dataset}/{method}": f"{METHODS[method].summary}; {PROTOCOLS[dataset].summary}"
        for dataset in PROTOCOLS
        for method in METHODS
    }


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "recipes": recipes,
    "models": lambda: {name: first_line(family) for name, family in FAMILIES.items()},
    "masks": lambda: {name: MASKS[name].summary for name in MASKS},
    "datasets": lambda: {name: first_line(DATASETS[name]) for name in DATASETS},
    "metrics": lambda: (
        {name: first_line(METRICS[name]) for name in METRICS}
        | {name: first_line(DIVERSITY[name]) for name in DIVERSITY}
    ),
}


def main(arguments: list[str]) -> None:
    into = parser("list", "What there is, one line each.")
    into.add_argument("kind", nargs="?", choices=list(KINDS), help="only this kind")
    chosen = parse(into, arguments).kind
    for kind in [chosen] if chosen else KINDS:
        table = Table("name", "what it is", title=kind, title_justify="left", box=None, pad_edge=False)
        for name, text in KINDS[kind]().items():
            table.add_row(name, text)
        Console().print(table)
