"""What making a batch costs beside the training step that uses it: every mask, every augmentation.

    python benchmarks/batches.py [--device cuda] [--batch 256] [--width 10]

Draws included, compiled as in training; the step is the whole WRN-28-10 Cut-MixMo step in bf16, measured in this run.
"""

import argparse

import torch

from mixmo.augment.pixel import AUGMENTATIONS
from mixmo.data.types import Dataset
from mixmo.engine.batch import Batches, Now
from mixmo.engine.benchmark import timed
from mixmo.engine.estimate import estimate
from mixmo.engine.step_timer import random_dataset
from mixmo.mixing.masks import MASKS
from mixmo.recipes import PROTOCOLS, Recipe, named


def batch_seconds(recipe: Recipe, dataset: Dataset, device: torch.device) -> float:
    torch._dynamo.reset()  # each case is a program of its own
    batches = Batches(recipe, dataset, dataset.train)
    mix = torch.compile(batches.mix, dynamic=False) if device.type == "cuda" else batches.mix
    unique = torch.arange(recipe.batch_size // recipe.repetition, device=device)
    generator, now = torch.Generator(device).manual_seed(0), Now.at(1.0, device=device)
    return timed(lambda: mix(batches.draw(unique, generator), now), device, 0.2, 5).seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=10)
    options = parser.parse_args()
    device = torch.device(options.device)
    precision = "bf16" if device.type == "cuda" else "fp32"
    base = named("cifar100/cut-mixmo").replace(batch_size=options.batch, width=options.width, precision=precision)
    facts = PROTOCOLS["cifar100"].facts
    dataset = random_dataset("cifar100", facts._replace(samples=2 * options.batch), device)
    step = estimate(base, facts, device).step_seconds
    print(f"{torch.__version__}, {device}: WRN-28-{options.width} step at batch {options.batch}: {1e3 * step:.2f} ms")
    plain = batch_seconds(base.replace(mask="sum", p=0.0, crop=0, flip=False), dataset, device)
    print(f"{'normalise only':24} {1e3 * plain:8.3f} ms {100 * plain / step:6.2f} %")
    cases = {f"mask {name}": base.replace(mask=name) for name in MASKS}
    cases |= {f"cut + pixel {name}": base.replace(pixel=name) for name in AUGMENTATIONS}
    cases["cut + augmix"] = base.replace(augmix=True)
    for name, recipe in cases.items():
        each = batch_seconds(recipe, dataset, device)
        print(f"{name:24} {1e3 * each:8.3f} ms {100 * each / step:6.2f} % of the step")


if __name__ == "__main__":
    main()
