"""Where runs are kept and found: a run is known by its recipe, seed included, so that all tables share it.

OUT/runs/NAME/       a run directory each
OUT/derived/NAME/    what was computed from one run or several as one ensemble: scores, corruptions, filters
OUT/tables/          the tables

Runs found elsewhere, as in `results/`, may lack weights and logits: they serve what needs only the files they have.
"""

import functools
import hashlib
import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from mixmo.recipes import METHODS, PROTOCOLS, named
from mixmo.recipes.finetune import METHODS_FINETUNE
from mixmo.recipes.finetune import NAME as FINETUNING
from mixmo.recipes.schema import FIELDS, RENAMED, Recipe
from mixmo.runs.directory import Run
from mixmo.storage.files import atomic_write
from mixmo.storage.plain_json import parse_json
from mixmo.storage.weights import is_stored
from mixmo.utils.errors import UserError

NOT_METHOD = ("width", "repetition", "seed", "epochs", "batch_size", "precision")  # say nothing about the method

DERIVED = "derived"  # the folder below OUT


def digest(*recipes: Recipe) -> str:
    """Return a short hash of recipes. Fields at their default do not enter: one that is added later changes none."""
    usual, former = Recipe().to_dict(), {new: old for old, new in RENAMED.items()}  # under which runs were stored
    said = [
        {former.get(key, key): value for key, value in recipe.to_dict().items() if value != usual[key]}
        for recipe in recipes
    ]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:8]


@functools.cache
def run_name(recipe: Recipe) -> str:
    """Return the name of a run's folder: data set, nearest method, width or backbone, repetition, seed and hash.

    >>> run_name(named("cifar100/cut-mixmo").replace(width=4, repetition=4))
    'cifar100-cut-mixmo-w4-b4-s0-819fb96e'
    >>> run_name(named("finetune/cutmix").replace(model="timm/convnext_tiny", dataset="folder:../photos@224"))
    'photos-224-cutmix-convnext_tiny-b1-s0-f2049ef9'
    """
    _, method = nearest_recipe(recipe)
    network = _plain(recipe.model) if recipe.is_backbone else f"w{recipe.width}"
    dataset = protocol_of(recipe) or _plain(recipe.dataset)
    return f"{dataset}-{method}-{network}-b{recipe.repetition}-s{recipe.seed}-{digest(recipe)}"


def _plain(name: str) -> str:
    """The last part of a path or name, in characters that every file system has."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", re.split(r"[/:]", name.rstrip("/"))[-1]).strip("-")[:40] or "run"


def protocol_of(recipe: Recipe) -> str | None:
    """Return the name of the published protocol of its data set; None for other data."""
    return next((name for name, p in PROTOCOLS.items() if p.changes["dataset"] == recipe.dataset), None)


@functools.cache
def nearest_recipe(recipe: Recipe) -> tuple[str, str]:
    """Return protocol and method of the named recipe from which this one differs in the fewest fields.

    The protocol is that of its data set, cifar100 for other data; or fine-tuning, if its model is a backbone.

    >>> from mixmo.recipes import named
    >>> nearest_recipe(named("finetune/cut-mixmo+cutmix").replace(rho=0.5))
    ('finetune', 'cut-mixmo+cutmix')
    """
    near = [(protocol_of(recipe) or "cifar100", method) for method in METHODS]
    near += [(FINETUNING, method) for method in METHODS_FINETUNE] if recipe.is_backbone else []
    compared = [name for name in FIELDS if name not in NOT_METHOD]

    def differences(name: tuple[str, str]) -> tuple[int, int]:  # input repetition alone makes no other method
        changed = [field for field in compared if getattr(recipe, field) != getattr(_named(*name), field)]
        return len(changed), len([field for field in changed if field != "rho"])

    return min(near, key=differences)


@functools.cache
def _named(protocol: str, method: str) -> Recipe:
    return named(f"{protocol}/{method}")


class Store:
    """The runs of one output folder, and those found elsewhere."""

    def __init__(self, out: Path, elsewhere: Iterable[Path] = ()) -> None:
        self.out, self.elsewhere = out, list(elsewhere)
        if out.exists() and not out.is_dir():
            raise UserError(f"--out {out} is a file; give a folder for runs and tables")
        for folder in self.elsewhere:
            if not folder.is_dir():
                raise UserError(f"--runs {folder} is not a folder; give one that holds run directories")
        self._found: dict[Recipe, list[Path]] = {}
        self.unreadable: dict[Path, str] = {}  # folders that are passed over, and why
        for folder in (out / "runs", *self.elsewhere):
            for path in sorted(folder.rglob("recipe.yaml")):
                try:
                    recipe = Run.open(path.parent).recipe
                except (UserError, OSError) as error:
                    self.unreadable[path.parent] = str(error)
                    continue
                if recipe.networks == 1:
                    self._found.setdefault(recipe, []).append(path.parent)

    def folder(self, recipe: Recipe) -> Path:
        """Return the folder of a run: where it was begun below OUT, or a new one."""
        runs = self.out / "runs"
        begun = [path for path in self._found.get(recipe, []) if path.is_relative_to(runs)]
        return begun[0] if begun else runs / run_name(recipe)

    def find(self, recipe: Recipe, needed: Collection[str] = ("scores.json",)) -> Run | None:
        """A finished run of this recipe that has these files."""
        for path in dict.fromkeys((*self._found.get(recipe, []), self.folder(recipe))):
            files = [path / name for name in {*needed, "recipe.yaml", "scores.json"}]
            if path not in self.unreadable and all(map(is_stored, files)):
                return Run(path, recipe)
        return None

    def finished(self) -> list[Recipe]:
        return [recipe for recipe in self._found if self.find(recipe) is not None]

    def begun(self, recipe: Recipe) -> bool:
        return (self.folder(recipe) / "checkpoints").is_dir()

    def derived(self, group: tuple[Recipe, ...], name: str) -> dict[str, Any] | None:
        """Return derived scores of one run or an ensemble; None if absent or damaged, so that they are made again."""
        for folder in (self.out, *self.elsewhere):
            path = folder / DERIVED / group_name(group) / name
            try:
                kept: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
                if kept.pop("sha256") == _sum(kept):
                    return kept
            except (FileNotFoundError, ValueError, AttributeError, KeyError, TypeError):
                continue
        return None

    def keep(self, group: tuple[Recipe, ...], name: str, found: dict[str, Any]) -> None:
        """Write what was computed from one run or an ensemble, with its checksum."""
        path = self.out / DERIVED / group_name(group) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps({**found, "sha256": _sum(found)}, indent=1))


def _sum(found: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


@functools.cache
def group_name(group: tuple[Recipe, ...]) -> str:
    """The folder of what is derived from some runs; their order does not matter."""
    ordered = sorted(group, key=lambda recipe: recipe.seed)
    if len(ordered) == 1:
        return run_name(ordered[0])
    first = run_name(ordered[0]).rpartition("-")[0]
    return f"{first}-x{len(ordered)}-{digest(*ordered)}"
