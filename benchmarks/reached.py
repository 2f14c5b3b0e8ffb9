"""Write src/mixmo/recipes/reached.yaml again, from the runs in results/: python benchmarks/reached.py"""

import json
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from mixmo.recipes import Recipe, named, names
from mixmo.runs.directory import Run

ROOT = Path(__file__).resolve().parents[1]
HEADER = """\
# What recipes reached in the runs of results/, made by `python benchmarks/reached.py`. Top1 in percent and NLLc at the
# best epoch by test accuracy, as in the paper; minutes of training steps, some on a shared GPU (results/README.md).
"""


def nearest(recipe: Recipe) -> tuple[str, dict[str, Any]]:
    """Return the named recipe that differs in the fewest fields, and the fields that differ, without the seed."""
    fields = recipe.replace(seed=0).to_dict()
    changes = {
        name: {key: fields[key] for key, value in named(name).to_dict().items() if fields[key] != value}
        for name in names()
    }
    name = min(changes, key=lambda name: len(changes[name]))
    return name, changes[name]


def collect(results: Path) -> list[dict[str, Any]]:
    """Return one entry per recipe and settings, with means over the runs of its seeds."""
    groups: dict[str, list[Run]] = {}
    for path in sorted(results.rglob("recipe.yaml")):
        run = Run.open(path.parent)
        groups.setdefault(yaml.safe_dump(nearest(run.recipe)), []).append(run)
    entries = []
    for runs in groups.values():
        runs.sort(key=lambda run: run.recipe.seed)
        name, settings = nearest(runs[0].recipe)
        scores = [json.loads((run.path / "scores.json").read_text()) for run in runs]
        best = [one["best"]["ensemble"] for one in scores]
        entries.append(
            {
                "recipe": name,
                "settings": settings,
                "seeds": [run.recipe.seed for run in runs],
                "top1": round(mean(100 * one["top1"] for one in best), 2),
                "nllc": round(mean(one["nllc"] for one in best), 3),
                "minutes": round(mean(one["seconds"] for one in scores) / 60, 1),
                "device": json.loads((runs[0].path / "environment.json").read_text())["device_name"],
            }
        )
    order = names()
    return sorted(
        entries, key=lambda entry: (order.index(entry["recipe"]), len(entry["settings"]), str(entry["settings"]))
    )


if __name__ == "__main__":
    text = yaml.safe_dump(collect(ROOT / "results"), sort_keys=False, default_flow_style=None, width=120)
    (ROOT / "src" / "mixmo" / "recipes" / "reached.yaml").write_text(HEADER + text)
