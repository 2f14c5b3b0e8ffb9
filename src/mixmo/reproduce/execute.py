"""Train the missing runs here, one after the other."""

import sys
from collections.abc import Sequence

from mixmo.engine import Runtime, Stopped, train
from mixmo.errors import UserError
from mixmo.progress import track
from mixmo.recipes.schema import Recipe
from mixmo.reproduce.store import Store

Failures = dict[Recipe, str]


def say(text: str) -> None:
    """Progress goes to standard error, so that standard output stays for tables."""
    print(text, file=sys.stderr, flush=True)


def run_here(recipes: Sequence[Recipe], store: Store, runtime: Runtime) -> Failures:
    """Train or resume each; one that cannot be trained does not keep the others from it.

    Ctrl-C saves the run under way and ends the plan; the same command continues it.
    """
    if runtime.world().size > 1:  # they would claim the runs from each other
        raise UserError("a plan is run by one process; start it without torchrun, and share it out with --ray auto")
    failures: Failures = {}
    for number, recipe in enumerate(track(recipes, "runs"), 1):
        folder = store.folder(recipe)
        say(f"run {number} of {len(recipes)}: {folder.name}{' (resumed)' if store.begun(recipe) else ''}")
        try:
            train(recipe, folder, runtime, resume=True)
        except UserError as error:
            failures[recipe] = str(error)
            say(f"{folder.name} failed: {error}")
        except Stopped as stopped:
            done = number - 1 - len(failures)
            raise Stopped(
                f"{folder.name} {str(stopped).partition(';')[0]}, {done} of {len(recipes)} runs done before it; "
                "the same command continues"
            ) from stopped
    return failures
