"""Print what a plan of `mixmo reproduce` needs, what is done, and the time it takes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from mixmo.cli.console import Output, grid
from mixmo.recipes.schema import FIELDS, Recipe
from mixmo.reproduce.cost import Speed, h200, run_seconds
from mixmo.reproduce.execute import epochs_logged
from mixmo.reproduce.plan import Plan, missing, needed, trained
from mixmo.reproduce.queue import joined
from mixmo.reproduce.scales import SCALES
from mixmo.reproduce.settings import settings_for
from mixmo.reproduce.store import Store, run_name
from mixmo.reproduce.text import title
from mixmo.utils.text import duration

ABOUT = "from the rates in benchmarks/RESULTS.md, with scoring and compilation."


def show_list(plans: list[Plan], store: Store, here: Speed, settings: Mapping[str, Any]) -> None:
    """One row per table: runs needed and done, time on an H200 in all and left, time left on this device."""
    console = Output(80)
    wide = console.width >= 120
    numbers = ("done", "scored", "H200", "left", *(["left here"] if here.measured else []))
    table = grid("name", "paper", *numbers, words=2)
    table.columns[0].no_wrap = True
    if wide:
        table.add_column("title")
    for plan in plans:
        beyond = "" if plan.cells else " (not at this scale)"
        titled = [f"{plan.table.title}{beyond}"] if wide else []
        table.add_row(plan.table.name, plan.table.source, *amounts([plan], store, here), *titled)
    table.add_section()
    table.add_row("all", "", *amounts(plans, store, here), *(["with runs shared"] if wide else []))
    scales = dict.fromkeys(plan.scale for plan in plans if trained(plan.table)) or {plans[0].scale: None}
    changed = "".join(f"; {name} = {value}" for name, value in settings.items())
    for scale in scales:
        console.print(f"scale {scale}: {SCALES[scale].summary}{changed}", style="bold")
    console.print(table)
    console.print("done: finished runs, of those needed. scored: without the logits or weights that some cells need.")
    console.print(f"H200: {ABOUT}" + (f" Here: one {here.name}, by a few steps measured now." if here.measured else ""))
    for line in unused(plans, store):
        console.print(f"not counted: {line}")


def amounts(plans: list[Plan], store: Store, here: Speed) -> list[str]:
    """Return the runs done and scored, total and remaining time on an H200, and remaining time on this device."""
    runs = needed(plans, store)
    lacking = missing(runs, store)
    scored = sum(store.find(recipe) is not None for recipe in lacking)
    speeds = [h200(), *([here] if here.measured else [])]
    spans = [sum(run_seconds(recipe, h200()) for recipe in runs), *[left(lacking, store, speed) for speed in speeds]]
    times = [duration(span) if span else "-" for span in spans]
    return [f"{len(runs) - len(lacking)}/{len(runs)}", str(scored), *times]


def unused(plans: list[Plan], store: Store) -> list[str]:
    """Finished runs that serve no table as it is planned, and the settings with which they would."""
    runs = needed(plans, store)
    hints = Counter(settings_for(recipe, runs) for recipe in store.finished() if recipe not in runs)
    named = {hint: f"of another protocol (with {hint} counted)" if hint else "that no table here has" for hint in hints}
    return [f"{count} run{'s' if count > 1 else ''} {named[hint]}" for hint, count in sorted(hints.items())]


def left(recipes: Iterable[Recipe], store: Store, speed: Speed) -> float:
    """Seconds for what runs still lack: all of them, or the epochs after those that one to resume has logged."""
    done = {recipe: epochs_logged(store.folder(recipe)) if store.begun(recipe) else 0 for recipe in recipes}
    return sum(run_seconds(recipe, speed) * (1 - epochs / recipe.epochs) for recipe, epochs in done.items())


def show_plan(plans: list[Plan], lacking: list[Recipe], store: Store, speed: Speed) -> None:
    """The runs that would be trained, in order."""
    for plan in joined(plans):
        print(title(plan))
    runs = needed(plans, store)
    print(
        f"{len(runs)} runs needed, {len(runs) - len(lacking)} there, {len(lacking)} to train into {store.out / 'runs'}"
    )
    small = speed.measured and all(recipe.dataset == "digits" for recipe in lacking)  # made for a CPU
    for recipe, differing in distinguished(lacking).items():
        state, seconds = "resume" if store.begun(recipe) else "train", left([recipe], store, speed if small else h200())
        print(f"  {state:6} {duration(seconds):>9}  {run_name(recipe)}  {differing}".rstrip())
    if not small:
        print(f"{duration(left(lacking, store, h200()))} of one H200, one run after the other: {ABOUT}")
    if speed.measured:
        print(f"{duration(left(lacking, store, speed))} of one {speed.name}: by a few steps measured now")


def distinguished(recipes: Iterable[Recipe]) -> dict[Recipe, str]:
    """Return the fields in which each recipe differs from those whose runs have the same name up to its last part.

    >>> recipes = [Recipe(alpha=alpha) for alpha in (1.0, 4.0)]
    >>> list(distinguished([*recipes, Recipe(width=2)]).values())
    ['alpha = 1.0', 'alpha = 4.0', '']
    """
    alike: dict[str, list[Recipe]] = {}
    for recipe in (recipes := list(recipes)):
        alike.setdefault(run_name(recipe).rpartition("-")[0], []).append(recipe)
    texts: dict[Recipe, str] = {}
    for group in alike.values():
        fields = [field for field in FIELDS if len({getattr(recipe, field) for recipe in group}) > 1]
        texts |= {recipe: ", ".join(f"{field} = {getattr(recipe, field)}" for field in fields) for recipe in group}
    return {recipe: texts[recipe] for recipe in recipes}
