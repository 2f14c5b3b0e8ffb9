"""Named recipes `dataset/method`: the published protocol of the data set, and what the method changes in it."""

from mixmo.recipes.fast import FAST, METHODS_FAST, SUFFIX
from mixmo.recipes.methods import METHODS
from mixmo.recipes.protocols import PROTOCOLS
from mixmo.recipes.schema import Recipe
from mixmo.utils.errors import unknown

__all__ = ["METHODS", "PROTOCOLS", "Recipe", "named", "names", "summary"]


def names() -> list[str]:
    """Every named recipe."""
    published = [f"{dataset}/{method}" for dataset in PROTOCOLS for method in METHODS]
    return published + [f"{dataset}/{method}{SUFFIX}" for dataset in FAST for method in METHODS_FAST]


def named(name: str) -> Recipe:
    """A recipe by its name, such as `cifar100/cut-mixmo`, or `cifar100/cut-mixmo-fast`.

    >>> named("cifar100/mimo").mask, named("cifar100/mimo-fast").schedule
    ('sum', 'cosine')
    """
    if name not in names():
        raise unknown("recipe", name, names())
    dataset, _, method = name.partition("/")
    fast = FAST[dataset] if method.endswith(SUFFIX) else {}
    chosen = METHODS[method.removesuffix(SUFFIX)]
    return Recipe(**{**PROTOCOLS[dataset].changes, **fast, **chosen.changes, **chosen.on.get(dataset, {})})


def summary(name: str) -> str:
    """What the method of a named recipe is."""
    method = name.partition("/")[2]
    fast = "; fast: a short schedule, to fit with --minutes" if method.endswith(SUFFIX) else ""
    return METHODS[method.removesuffix(SUFFIX)].summary + fast
