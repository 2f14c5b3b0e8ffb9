"""Named recipes `dataset/method`: the published protocol of the data set, and what the method changes in it."""

from mixmo.errors import unknown
from mixmo.recipes.methods import METHODS
from mixmo.recipes.protocols import PROTOCOLS
from mixmo.recipes.schema import Recipe

__all__ = ["METHODS", "PROTOCOLS", "Recipe", "named", "names"]


def names() -> list[str]:
    """Every named recipe."""
    return [f"{dataset}/{method}" for dataset in PROTOCOLS for method in METHODS]


def named(name: str) -> Recipe:
    """A recipe by its name, such as `cifar100/cut-mixmo`.

    >>> named("cifar100/mimo").mask
    'sum'
    """
    dataset, _, method = name.partition("/")
    if dataset not in PROTOCOLS or method not in METHODS:
        raise unknown("recipe", name, names())
    chosen = METHODS[method]
    return Recipe(**{**PROTOCOLS[dataset].changes, **chosen.changes, **chosen.on.get(dataset, {})})
