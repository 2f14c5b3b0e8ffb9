"""What a calibration promises and what it keeps on real runs.

python benchmarks/coverage.py RUN...

Fits temperature, sets and threshold to the validation logits of each run (train it with --validation N) and scores them
on its test logits, which nothing was fitted to: coverage and size of the sets, share of answers given and their risk.
"""

import sys
from pathlib import Path

import torch

from mixmo.calibration import calibrate
from mixmo.metrics import METRICS
from mixmo.metrics.conformal import CONFORMAL
from mixmo.prediction import Prediction
from mixmo.runs import Run, load_tensors

LEVELS = (0.8, 0.9, 0.95)
RISKS = (0.05, 0.1, 0.2)


def main(paths: list[str]) -> None:
    for path in paths:
        run = Run.open(Path(path))
        tensors = load_tensors(run.path / "logits-last.safetensors")
        held = tensors["validation_logits"], tensors["validation_labels"]
        logits, labels = tensors["logits"], tensors["labels"]
        print(f"{run.recipe.dataset}, {run.recipe.architecture}, {len(logits)} members")
        print(f"fitted to {len(held[1]):,} validation images, scored on {len(labels):,} test images\n")
        print("| sets | level | covered % | classes a set | empty % |")
        print("|---|---|---|---|---|")
        for method in CONFORMAL:
            for randomised in (False,) if method == "lac" else (False, True):
                for level in LEVELS:
                    torch.manual_seed(0)
                    fitted = calibrate(*held, method=method, level=level, randomised=randomised, risk=None)
                    sets = Prediction(logits, fitted).sets
                    covered = sets[torch.arange(len(labels)), labels].double().mean().item()
                    size, empty = sets.sum(1).double().mean().item(), (sets.sum(1) == 0).double().mean().item()
                    name = f"{method}, randomised" if randomised else method
                    print(f"| {name} | {level} | {100 * covered:.2f} | {size:.2f} | {100 * empty:.1f} |")
        print("\n| wanted risk % | answered % | wrong, of the answered % |\n|---|---|---|")
        for risk in RISKS:
            prediction = Prediction(logits, calibrate(*held, risk=risk))
            given = ~prediction.abstain
            wrong = (prediction.labels != labels)[given].double()
            share = f"{100 * wrong.mean().item():.2f}" if len(wrong) else "-"
            print(f"| {100 * risk:g} | {100 * given.double().mean().item():.1f} | {share} |")
        mean = logits.double().mean(0)
        temperature = calibrate(*held, risk=None).temperature
        before, after = (METRICS["nll"](z, labels).item() for z in (mean, mean / temperature))
        print(f"\ntemperature {temperature:.3f}: NLL {before:.4f} before, {after:.4f} after\n")


if __name__ == "__main__":
    main(sys.argv[1:])
