"""Names to show: of the method of a recipe and what it changes, and of runs."""

from pathlib import Path

from mixmo.recipes import named
from mixmo.recipes.schema import Recipe
from mixmo.reproduce.store import nearest_recipe, protocol_of


def method(recipe: Recipe) -> tuple[str, dict[str, object]]:
    """Return the named recipe that is nearest, and the fields in which this one differs.

    >>> method(named("cifar100/cut-mixmo").replace(width=4))
    ('cifar100/cut-mixmo', {'width': 4})
    """
    protocol, nearest = nearest_recipe(recipe)
    name = f"{protocol}/{nearest}"
    if protocol_of(recipe):
        return name, _changes(recipe, named(name))
    return f"{recipe.dataset}, {nearest}", _changes(recipe, named(name), without=("dataset",))


def _changes(recipe: Recipe, base: Recipe, without: tuple[str, ...] = ()) -> dict[str, object]:
    usual = base.to_dict()
    return {
        key: value for key, value in recipe.to_dict().items() if value != usual[key] and key not in (*without, "seed")
    }


def short_names(paths: list[Path]) -> list[str]:
    """Return names that tell runs apart: their paths without the folders that all have in common.

    >>> short_names([Path("runs/a/cut"), Path("runs/b/cut")]), short_names([Path("runs/cut")])
    (['a/cut', 'b/cut'], ['cut'])
    """
    parts = [path.resolve().parts for path in paths]
    common = 0
    while all(len(each) > common + 1 for each in parts) and len({each[common] for each in parts}) == 1:
        common += 1
    return ["/".join(each[common:]) for each in parts]
