"""mixmo list [protocols|methods|recipes|models|masks|augmentations|datasets|metrics|shipped] [FILTER]"""

import shutil
import textwrap
from collections.abc import Callable
from typing import Literal

from mixmo.augment.augmix import augmix
from mixmo.augment.pixel import AUGMENTATIONS
from mixmo.baselines.feature_mixing import FEATURE_MIXING
from mixmo.baselines.saliency import SALIENCY
from mixmo.cli.arguments import parse, parser
from mixmo.cli.recipe_scores import UNSCORED, score_lines
from mixmo.data import DATASETS, folder
from mixmo.data.check import CORRUPTED
from mixmo.hub.shipped import shipped
from mixmo.hub.shipped import summary as shipped_summary
from mixmo.metrics import DIVERSITY, METRICS
from mixmo.mixing.masks import MASKS
from mixmo.mixing.mixer import UNMASKED
from mixmo.models import FAMILIES
from mixmo.recipes import METHODS, PROTOCOLS, named, names, summary
from mixmo.recipes.finetune import NAME as FINETUNING
from mixmo.recipes.finetune import SUMMARY as FINETUNING_SUMMARY
from mixmo.surgery.backbones import FORMS
from mixmo.utils.errors import UserError


def doc_line(thing: object) -> str:
    """Return the first line of a docstring."""
    return (thing.__doc__ or "").partition("\n")[0]


def protocols() -> dict[str, str]:
    return {name: protocol.summary for name, protocol in PROTOCOLS.items()} | {FINETUNING: FINETUNING_SUMMARY}


def recipes() -> dict[str, str]:
    """Return each recipe's method and, where there are any, its scores."""
    scores = {name: score_lines(name, named(name)) for name in names()}
    return {name: "\n".join((summary(name), *(line for line in scores[name] if line != UNSCORED))) for name in scores}


def augmentations() -> dict[str, str]:
    pixel = {f"--pixel {name}": doc_line(AUGMENTATIONS[name].apply) for name in AUGMENTATIONS}
    features = {f"--feature-mixing {name}": doc_line(FEATURE_MIXING[name].shares) for name in FEATURE_MIXING}
    saliency = {f"--saliency {name}": doc_line(SALIENCY[name].apply) for name in SALIENCY}
    return pixel | features | saliency | {"--augmix": doc_line(augmix)}


def datasets() -> dict[str, str]:
    registered = {name: doc_line(DATASETS[name]) for name in DATASETS}
    corrupted = {
        name: f"Corrupted test images of {name.partition('-')[0]}, for `mixmo eval --corruptions`; in ROOT/{place}."
        for name, place in CORRUPTED.items()
    }
    return registered | {f"{folder.PREFIX}PATH@SIZE": doc_line(folder)} | corrupted


def metrics() -> dict[str, str]:
    scores = {name: doc_line(METRICS[name]) for name in METRICS}
    calibrated = {
        f"{name}c": f"Calibrated {name.upper()}: of two halves, each at the temperature fitted on the other."
        for name in ("nll", "ece")
    }
    return scores | calibrated | {name: doc_line(DIVERSITY[name]) for name in DIVERSITY}


RECIPES = (
    "a recipe is PROTOCOL/METHOD, such as cifar100/cut-mixmo or finetune/cut-mixmo; `mixmo list recipes cifar100` "
    "gives scores"
)
KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "protocols": protocols,
    "methods": lambda: {name: method.summary for name, method in METHODS.items()},
    "recipes": recipes,
    "models": lambda: {name: doc_line(family) for name, family in FAMILIES.items()} | FORMS,
    "masks": lambda: {name: doc_line(MASKS[name].draw) for name in MASKS} | UNMASKED,
    "augmentations": augmentations,
    "datasets": datasets,
    "metrics": metrics,
    "shipped": lambda: {name: shipped_summary(name) for name in shipped()},
}


def main(arguments: list[str]) -> None:
    into = parser(
        "list",
        "Recipes, models, masks and other components, each with a description. Scores of recipes are those of the best "
        "epoch by test accuracy.",
    )
    into.add_argument("kind", nargs="?", type=Literal[tuple(KINDS)], help=f"only this kind: {', '.join(KINDS)}")
    into.add_argument("filter", nargs="?", help="only names that contain this text, such as cifar100")
    parsed, width = parse(into, arguments), shutil.get_terminal_size().columns
    for kind in [parsed.kind] if parsed.kind else [kind for kind in KINDS if kind != "recipes"]:
        things = {name: text for name, text in KINDS[kind]().items() if (parsed.filter or "") in name}
        if not things:
            raise UserError(f"no {kind} with '{parsed.filter}' in the name; `mixmo list {kind}` shows all")
        if not parsed.kind:
            print(f"\n{kind}:" if kind != "methods" else f"\n{textwrap.fill(f'{kind} ({RECIPES}):', width)}")
        indent = min(max(map(len, things)) + 2, 30)
        wrapper = textwrap.TextWrapper(width, initial_indent=" " * indent, break_on_hyphens=False)
        wrapper.subsequent_indent = wrapper.initial_indent
        for name, text in things.items():
            block = "\n".join(map(wrapper.fill, text.splitlines()))
            print(name + block[len(name) :] if len(name) < indent else f"{name}\n{block}")
