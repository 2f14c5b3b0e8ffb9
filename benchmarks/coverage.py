"""What calibrations promise and keep on real runs, side by side.

    python benchmarks/coverage.py RUN... [--splits 20]

Fits temperature, sets and threshold to a random half of each run's test logits of the last epoch, and scores them on
the other half, over so many splits: neither half was trained on or chosen an epoch. Every run sees the same halves.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from mixmo.calibration.conformal import CONFORMAL
from mixmo.calibration.posthoc import calibrate
from mixmo.inference.prediction import Prediction
from mixmo.metrics import METRICS
from mixmo.runs.directory import Run

LEVELS = (0.8, 0.9, 0.95)
RISKS = (0.02, 0.05, 0.1)


def main() -> None:
    into = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    into.add_argument("runs", nargs="+", type=Path, help="run directories with their logits")
    into.add_argument("--splits", type=int, default=20, help="halvings of the test set")
    given = into.parse_args()
    for path in given.runs:
        run = Run.open(path)
        logits_MNK, labels_N = run.read_logits("last")
        halves = [halved(len(labels_N), seed) for seed in range(given.splits)]
        print(f"\n## {path.name}: {run.recipe.architecture}, {len(logits_MNK)} heads, {len(labels_N):,} test images")
        print("\n| sets: covered % (classes a set) | " + " | ".join(f"level {level}" for level in LEVELS) + " |")
        print("|---" * (1 + len(LEVELS)) + "|")
        for method in CONFORMAL:
            for randomised in (False,) if method == "lac" else (False, True):
                cells = []
                for level in LEVELS:
                    settings = {"method": method, "level": level, "randomised": randomised, "risk": None}
                    covered, size = mean_of(sets(logits_MNK, labels_N, *half, settings) for half in halves)
                    cells.append(f"{100 * covered:.2f} ({size:.2f})")
                print(f"| {method}{', randomised' if randomised else ''} | {' | '.join(cells)} |")
        print("\n| wrong answers allowed % | answered % | wrong, of the answered % | promise kept |\n|---|---|---|---|")
        for risk in RISKS:
            answered, wrong, kept = mean_of(answers(logits_MNK, labels_N, *half, risk) for half in halves)
            print(f"| {100 * risk:g} | {100 * answered:.1f} | {100 * wrong:.2f} | {kept * given.splits:.0f} times |")
        temperature, *scores = mean_of(tempered(logits_MNK, labels_N, *half) for half in halves)
        print("\ntemperature {:.3f}: NLL {:.4f} before, {:.4f} after; ECE {:.4f}, {:.4f}".format(temperature, *scores))


def halved(count: int, seed: int) -> tuple[Tensor, Tensor]:
    first, second = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).chunk(2)
    return first, second


def mean_of(rows: Iterable[list[float]]) -> list[float]:
    return torch.tensor(list(rows), dtype=torch.float64).mean(0).tolist()


def sets(logits_MNK: Tensor, labels_N: Tensor, fit: Tensor, score: Tensor, settings: dict[str, object]) -> list[float]:
    """Share of sets that hold the true class, and how many classes a set has."""
    torch.manual_seed(0)  # of randomised sets
    fitted = calibrate(logits_MNK[:, fit], labels_N[fit], **settings)  # type: ignore[arg-type]
    inside_NK = Prediction(logits_MNK[:, score], fitted).sets
    covered = inside_NK.gather(1, labels_N[score][:, None]).double().mean().item()
    return [covered, inside_NK.sum(1).double().mean().item()]


def answers(logits_MNK: Tensor, labels_N: Tensor, fit: Tensor, score: Tensor, risk: float) -> list[float]:
    """Share answered, share of wrong ones among them, and whether they stay within the risk."""
    prediction = Prediction(logits_MNK[:, score], calibrate(logits_MNK[:, fit], labels_N[fit], risk=risk))
    wrong = (prediction.labels != labels_N[score])[~prediction.abstain].double()
    share = wrong.mean().item() if len(wrong) else 0.0
    return [len(wrong) / len(score), share, float(share <= risk)]


def tempered(logits_MNK: Tensor, labels_N: Tensor, fit: Tensor, score: Tensor) -> list[float]:
    """The temperature, then NLL and ECE before and after it."""
    temperature = calibrate(logits_MNK[:, fit], labels_N[fit], risk=None).temperature
    mean_NK, truth = logits_MNK[:, score].double().mean(0), labels_N[score]
    scores = [METRICS[name](z, truth).item() for name in ("nll", "ece") for z in (mean_NK, mean_NK / temperature)]
    return [temperature, *scores]


if __name__ == "__main__":
    main()
