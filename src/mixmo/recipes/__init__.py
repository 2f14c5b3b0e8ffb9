"""Named recipes `dataset/method`: the published protocol of a data set, and what a method changes in it.

cifar100/cut-mixmo         WRN-28-10 on CIFAR-100, 300 epochs, as in the paper
cifar100/cut-mixmo-fast    the same method and network with a short schedule
finetune/cut-mixmo         a pretrained backbone on your own images
"""

from mixmo.recipes.fast import FAST, METHODS_FAST, SUFFIX
from mixmo.recipes.finetune import FINETUNE, METHODS_FINETUNE
from mixmo.recipes.finetune import NAME as FINETUNING
from mixmo.recipes.methods import METHODS
from mixmo.recipes.protocols import PROTOCOLS
from mixmo.recipes.schema import Recipe
from mixmo.utils.errors import unknown

__all__ = ["METHODS", "PROTOCOLS", "Recipe", "named", "names", "summary"]


def names() -> list[str]:
    """Return the names of all recipes: every data set with every method, then the fast ones and fine-tuning."""
    published = [f"{dataset}/{method}" for dataset in PROTOCOLS for method in METHODS]
    fast = [f"{dataset}/{method}{SUFFIX}" for dataset in FAST for method in METHODS_FAST]
    return [*published, *fast, *(f"{FINETUNING}/{method}" for method in METHODS_FINETUNE)]


def named(name: str) -> Recipe:
    """Return a recipe by its name `dataset/method`; change its fields with `Recipe.replace`.

    >>> named("cifar100/mimo").mask, named("cifar100/mimo-fast").schedule
    ('sum', 'cosine')
    """
    if name not in names():
        raise unknown("recipe", name, names())
    dataset, _, method = name.partition("/")
    fast = FAST[dataset] if method.endswith(SUFFIX) else {}
    chosen = METHODS[method.removesuffix(SUFFIX)]
    protocol = FINETUNE if dataset == FINETUNING else PROTOCOLS[dataset].changes
    return Recipe(**{**protocol, **fast, **chosen.changes, **chosen.on.get(dataset, {})})


def summary(name: str) -> str:
    """Return one line about the method of a named recipe.

    >>> summary("finetune/cut-mixmo")
    'Cut-MixMo: a patch of one encoding pasted onto the other; rho = 0.25'
    """
    dataset, _, method = name.partition("/")
    fast = "; fast: a short schedule, to fit with --minutes" if method.endswith(SUFFIX) else ""
    chosen = METHODS[method.removesuffix(SUFFIX)]
    return (
        chosen.summary + "".join(f"; {field} = {value}" for field, value in chosen.on.get(dataset, {}).items()) + fast
    )
