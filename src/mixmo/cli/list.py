"""mixmo list [protocols|recipes|models|masks|augmentations|datasets|metrics|shipped]"""

from collections.abc import Callable

from mixmo.augment.augmix import augmix
from mixmo.augment.pixel import AUGMENTATIONS
from mixmo.baselines.feature_mixing import HIDDEN
from mixmo.baselines.saliency import SALIENCY
from mixmo.cli.arguments import parse, parser
from mixmo.data import DATASETS, folder
from mixmo.data.check import CORRUPTED
from mixmo.hub.shipped import shipped
from mixmo.hub.shipped import summary as shipped_summary
from mixmo.metrics import DIVERSITY, METRICS
from mixmo.mixing.masks import MASKS
from mixmo.mixing.mixer import UNMASKED
from mixmo.models import FAMILIES
from mixmo.recipes import PROTOCOLS, names, summary


def about(thing: object) -> str:
    """The first line of what a function says of itself."""
    return (thing.__doc__ or "").partition("\n")[0]


def recipes() -> dict[str, str]:
    return {name: summary(name) for name in names()}


def augmentations() -> dict[str, str]:
    pixel = {f"--pixel {name}": about(AUGMENTATIONS[name].apply) for name in AUGMENTATIONS}
    hidden = {f"--feature-mixing {name}": about(HIDDEN[name].shares) for name in HIDDEN}
    saliency = {f"--saliency {name}": about(SALIENCY[name].apply) for name in SALIENCY}
    return pixel | hidden | saliency | {"--augmix true": about(augmix)}


def datasets() -> dict[str, str]:
    registered = {name: about(DATASETS[name]) for name in DATASETS}
    corrupted = {
        name: f"Corrupted test images of {name.partition('-')[0]}, for `mixmo eval --corruptions`; in ROOT/{place}."
        for name, place in CORRUPTED.items()
    }
    return registered | {f"{folder.PREFIX}PATH@SIZE": about(folder)} | corrupted


def metrics() -> dict[str, str]:
    scores = {name: about(METRICS[name]) for name in METRICS}
    calibrated = {
        f"{name}c": f"Calibrated {name.upper()}: of two halves, each at the temperature fitted on the other."
        for name in ("nll", "ece")
    }
    return scores | calibrated | {name: about(DIVERSITY[name]) for name in DIVERSITY}


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "protocols": lambda: {name: protocol.summary for name, protocol in PROTOCOLS.items()},
    "recipes": recipes,
    "models": lambda: {name: about(family) for name, family in FAMILIES.items()},
    "masks": lambda: {name: about(MASKS[name].draw) for name in MASKS} | UNMASKED,
    "augmentations": augmentations,
    "datasets": datasets,
    "metrics": metrics,
    "shipped": lambda: {name: shipped_summary(name) for name in shipped()},
}


def main(arguments: list[str]) -> None:
    into = parser("list", "What there is, one line each.")
    into.add_argument("kind", nargs="?", choices=list(KINDS), help="only this kind")
    chosen = parse(into, arguments).kind
    for kind in [chosen] if chosen else KINDS:
        things = KINDS[kind]()
        indent = max((len(name) for name in things), default=0)
        if not chosen:
            print(f"\n{kind}:")
        for name, text in things.items():
            print(f"{name:<{indent}}  {text}")
