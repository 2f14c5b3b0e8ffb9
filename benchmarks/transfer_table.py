"""Fine-tuning pretrained networks, plainly and as ensembles: every row of the transfer table by one command.

    python benchmarks/transfer_table.py --data DATA [--out runs/transfer] [--jobs 6] [--minutes-left 50]
    python benchmarks/transfer_table.py --smoke

Networks are trained with CutMix on classes 0-49 of CIFAR-100, or on Tiny ImageNet at 32x32, then fine-tuned on 100
images for each of classes 50-99 of CIFAR-100, or for each class of CIFAR-10 (benchmarks/transfer.py). Several runs
share the GPU. The same command continues what was interrupted, prints the table, and writes OUT/transfer.json, both
from the runs that are there.
`--smoke` runs all of it on the embedded digits with tiny networks, in minutes on a CPU: it says nothing about the
methods.
"""

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transfer_runs import finished, record, train_all

from mixmo.engine import Runtime
from mixmo.recipes import METHODS, Recipe
from mixmo.recipes.protocols import FACTS
from mixmo.reproduce.store import Store

if __name__ in ("__main__", "__mp_main__"):  # the latter in the processes that train
    import transfer  # noqa: F401  (registers the data sets and the ViT)

COMMON: dict[str, Any] = {"batch_size": 128, "schedule": "cosine", "precision": "bf16"}
ADAMW = {"optimizer": "adamw", "weight_decay": 0.05, "decay_norms": False, "clip_grad": 1.0}
NETWORKS: dict[str, dict[str, Any]] = {
    "wrn28-4": {"depth": 28, "width": 4},
    "wrn28-10": {"depth": 28, "width": 10},
    "vit12-3": {"model": "vit", "depth": 12, "width": 3, **ADAMW},
}
PRETRAINED: dict[str, dict[str, Any]] = {  # data set to start from
    "cifar100": {"dataset": "cifar100-first", "epochs": 100},
    "tiny-imagenet": {"dataset": "tiny-imagenet-32", "epochs": 60},
    "cifar100-to-cifar10": {"dataset": "cifar100-first", "epochs": 100},
}
RATES = {"sgd": (0.1, 0.02), "adamw": (1e-3, 2e-4)}  # in pretraining, and in fine-tuning
TARGETS = {"cifar100-to-cifar10": "cifar10-100"}  # data set of the fine-tuning, where it is not
TARGET = "cifar100-rest-100"
CONVERTED = {"method": "cut-mixmo", "repetition": 4, "epochs": 50}  # b = 4: as many steps as 200 epochs of plain
PIXEL = {**CONVERTED, "method": "cut-mixmo+cutmix"}
HALF = {**CONVERTED, "rho": 0.5}
ROWS: dict[str, dict[str, Any]] = {
    "plain": {"method": "cutmix", "epochs": 100},
    "plain, 200 epochs": {"method": "cutmix", "epochs": 200},
    "plain, 3 x the rate": {"method": "cutmix", "epochs": 100, "rate": 3.0},
    "plain, averaged weights": {"method": "cutmix", "epochs": 100, "average": 5.0},
    "plain, 200 epochs, teacher": {"method": "cutmix", "epochs": 200, "teacher": "plain"},
    "converted": CONVERTED,
    "3 x the rate": {**CONVERTED, "rate": 3.0},
    "unmixing": {**CONVERTED, "unmix": "mask"},
    "unmixing, fadeout": {**CONVERTED, "unmix": "fadeout"},
    "ratios that grow": {**CONVERTED, "curriculum": "ratio"},
    "input repetition that falls": {**CONVERTED, "curriculum": "repetition"},
    "members identical at first": {**CONVERTED, "diversity": 0.0},
    "patches only": {**CONVERTED, "p": 1.0},
    "stems and heads at 3 x the rate": {**CONVERTED, "head_lr": 3.0},
    "averaged weights": {**CONVERTED, "average": 5.0},
    "teacher": {**CONVERTED, "teacher": "plain"},
    "pixel CutMix": PIXEL,
    "pixel CutMix, half repeated": {**PIXEL, "rho": 0.5},
    "half repeated": HALF,
    "half repeated, averaged weights": {**HALF, "average": 5.0},
    "half repeated, averaged weights, teacher": {**HALF, "average": 5.0, "teacher": "plain"},
    "half repeated, averaged weights, 3 x the rate": {**HALF, "average": 5.0, "rate": 3.0},
    "two networks": {"method": "cutmix", "epochs": 100, "networks": 2},
    "plain, 200 epochs, two teachers": {"method": "cutmix", "epochs": 200, "teacher": "two networks"},
    "half repeated, averaged weights, two teachers": {**HALF, "average": 5.0, "teacher": "two networks"},
}
SMOKE = {"dataset": "digits", "epochs": 1, "depth": 10, "width": 1, "size": 32, "precision": "fp32", "warmup": 0.0}
SCORES = {"top1": (100, 1), "nllc": (1, 3), "ece": (1, 3)}  # factor and digits


class Key(NamedTuple):
    """One row of the table, for one network and pretraining."""

    network: str
    source: str
    row: str


RUN = (*Key._fields, "seed")


def made(method: str, **changes: Any) -> Recipe:
    return Recipe(**{**COMMON, **METHODS[method].changes, **changes})


class Plan:
    """The recipes of the table; a run that starts from another names its folder."""

    def __init__(self, store: Store, smoke: bool) -> None:
        self.store, self.smoke = store, SMOKE if smoke else {}

    def pretraining(self, network: str, source: str) -> Recipe:
        fields = {**NETWORKS[network], **PRETRAINED[source], "warmup": 5.0}
        # The two sources are the same digits in a smoke test: another seed makes them two runs.
        seed = list(PRETRAINED).index(source) if self.smoke else 0
        lr = RATES[fields.get("optimizer", "sgd")][0]
        return made("cutmix", **{**fields, "lr": lr, "seed": seed, **self.smoke})

    def tuning(self, key: Key, seed: int) -> Recipe:
        target = {"dataset": TARGETS.get(key.source, TARGET), "warmup": 5.0}
        fields = {**NETWORKS[key.network], **target, **ROWS[key.row], "seed": seed}
        method = fields.pop("method")
        lr = RATES[fields.get("optimizer", "sgd")][1] * fields.pop("rate", 1.0)
        # b divides the rate of each step; plain fine-tuning has b = 1.
        fields |= {"lr": lr, "start": str(self.store.folder(self.pretraining(key.network, key.source)))}
        if "teacher" in fields:
            fields["teacher"] = str(self.store.folder(self.tuning(key._replace(row=fields["teacher"]), seed)))
        return made(method, **{**fields, **self.smoke})

    def stages(self, wanted: Sequence[tuple[Key, int]]) -> list[list[Recipe]]:
        """Return the runs of some rows and seeds in three parts, each of which needs the ones before it."""
        first = [self.pretraining(key.network, key.source) for key, _ in wanted]
        tuned = [self.tuning(key, seed) for key, seed in wanted]
        teachers = [(key._replace(row=ROWS[key.row].get("teacher", "")), seed) for key, seed in wanted]
        alone = [self.tuning(key, seed) for key, seed in teachers if key.row]
        alone += [recipe for recipe in tuned if not recipe.teacher]
        taught = [recipe for recipe in tuned if recipe.teacher]
        return [list(dict.fromkeys(part)) for part in (first, alone, taught)]


def table(runs: Iterable[dict[str, Any]]) -> str:
    """Return mean and standard deviation over seeds, as Markdown."""
    lines = ["| network | pretrained on | fine-tuning | Top1 % | NLLc | ECE | seeds |", "|---|---|---|---|---|---|---|"]
    rows: dict[Key, list[dict[str, float]]] = {}
    for run in runs:
        key = Key(run["network"], run["source"], run["row"])
        rows.setdefault(key, []).append(run["scores"]["last"]["ensemble"])
    for key, scores in rows.items():
        cells = [cell([score[name] * factor for score in scores], digits) for name, (factor, digits) in SCORES.items()]
        lines.append(f"| {' | '.join((*key, *cells, str(len(scores))))} |")
    return "\n".join(lines) + "\n"


def cell(values: list[float], digits: int) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def read(path: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    return {tuple(str(one[name]) for name in RUN): one for one in json.loads(path.read_text())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/transfer"))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--sources", nargs="+", choices=PRETRAINED, default=list(PRETRAINED))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--known", type=Path, help="a transfer.json: its runs are kept and not repeated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    parser.add_argument("--minutes-left", type=float, help="stop after so many minutes, every run with a checkpoint")
    parser.add_argument("--smoke", action="store_true", help="everything on the digits, with tiny networks")
    given = parser.parse_args()
    plan = Plan(Store(given.out), given.smoke)
    keys = [Key(n, s, row) for n in given.networks for s in given.sources for row in given.rows]
    known = read(given.known) if given.known else {}
    wanted = [(key, seed) for seed in range(given.seeds) for key in keys if (*key, str(seed)) not in known]
    runtime = Runtime(data=given.data, quiet=True, score_every=5)
    try:
        train_all(plan.stages(wanted), plan.store, runtime, given.jobs, given.minutes_left)
    finally:  # also of what ended before a run failed, or before Ctrl-C
        write(given, plan, keys, known)


def write(given: argparse.Namespace, plan: Plan, keys: Sequence[Key], known: dict[tuple[str, ...], Any]) -> None:
    """Write OUT/transfer.json of the runs that are finished, and print the table."""
    recipes = {(*key._replace(row="pretraining"), "0"): plan.pretraining(key.network, key.source) for key in keys}
    recipes |= {(*key, str(seed)): plan.tuning(key, seed) for key in keys for seed in range(given.seeds)}
    found = {
        name: {
            **dict(zip(RUN, name, strict=True)),
            **{"seed": recipe.seed, "images": FACTS[recipe.dataset].samples},
            **record(run),
        }
        for name, recipe in recipes.items()
        if (run := finished(plan.store, recipe))
    }
    runs = (known | found).values()
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "transfer.json").write_text(json.dumps(list(runs), indent=1))
    print(table(runs))


if __name__ == "__main__":
    main()
