"""`--set FIELD=VALUE`: changes to the protocol of a table."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mixmo.recipes.fields import has_type
from mixmo.recipes.schema import FIELDS, KINDS, Recipe
from mixmo.reproduce.plan import Plan, trained
from mixmo.storage.plain_yaml import parse_yaml
from mixmo.utils.errors import UserError, unknown

FIXED = ("dataset", "networks", "seed")  # set by the table or --seeds, not by --set
PROTOCOL = ("width", "batch_size", "ghost", "epochs", "precision")  # in which runs of the same comparison may differ


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """`--set FIELD=VALUE` as fields of the recipe.

    >>> read_settings(["batch_size=256", "lr=1e-1", "decay=[0.5, 1]", "size=160"])
    {'batch_size': 256, 'lr': 0.1, 'decay': (0.5, 1.0), 'size': 160}
    """
    settings: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"--set {word} has no value; write it as --set batch_size=256")
        if name in FIXED:
            raise UserError(f"--set {name} is not possible: the table sets it; --seeds N sets the number of seeds")
        if name not in FIELDS:
            raise unknown("field", name, FIELDS)
        if name in settings:
            raise UserError(f"--set {name} is given twice; give it once")
        usual, kind = getattr(Recipe, name), KINDS[name]
        try:
            value = parse_yaml(text)
            if isinstance(usual, float):
                value = float(value)
            elif isinstance(usual, tuple):
                value = tuple(map(float, value))
            elif not has_type(value, kind):
                raise TypeError
        except (TypeError, ValueError) as error:
            such = f"such as {usual}" if usual is not None else "a text" if has_type("", kind) else "a whole number"
            raise UserError(f"--set {word}: {name} is {such}; give a value of that kind") from error
        settings[name] = value
    return settings


def check_settings(settings: Mapping[str, Any], plans: Sequence[Plan]) -> None:
    """Raise a UserError for a setting that changes nothing, unless some runs have this value anyway."""
    cells = [cell for plan in plans if trained(plan.table) for cell in plan.cells.values()]
    recipes = {recipe for cell in cells for group in cell.groups for recipe in group}
    for name, value in settings.items() if recipes else ():
        if any(name in plan.settings for plan in plans) or any(getattr(recipe, name) == value for recipe in recipes):
            continue
        names = ", ".join(plan.table.name for plan in plans)
        raise UserError(
            f"--set {name}={value} changes nothing in {names}: methods, rows or columns set it; leave it out"
        )


def settings_for(recipe: Recipe, runs: Iterable[Recipe]) -> str:
    """The fewest settings that make one of the runs this one; empty if it takes more than a protocol's."""
    found = ""
    for run in runs:
        differing = [name for name in FIELDS if getattr(run, name) != getattr(recipe, name)]
        if set(differing) <= set(PROTOCOL):
            words = " ".join(f"--set {name}={getattr(recipe, name)}" for name in differing)
            found = min(found or words, words, key=len)
    return found
