"""What a trained network gives beyond accuracy: corruptions, OOD detection, calibration, multiplexed inference.

    python benchmarks/beyond.py MODEL... --data DATA --out results/beyond/NAME.json [--images 1000] [--corrupted 100]

Several models are scored as one ensemble. `--images` of the test set and of each other data set, and `--corrupted`
under each corruption and severity, are drawn at random; by default all are used. What is done is kept in OUT, so that
an interrupted command continues. Calibration is fitted to a random half of the test images and scored on the other,
over 20 splits.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixmo import data
from mixmo.calibration.conformal import CONFORMAL
from mixmo.calibration.posthoc import calibrate
from mixmo.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from mixmo.data.types import Split
from mixmo.evaluation.images import SplitImages, dataset_images
from mixmo.evaluation.models import Model, open_models
from mixmo.evaluation.pipeline import predict_images
from mixmo.evaluation.robustness import score
from mixmo.inference.prediction import Prediction
from mixmo.metrics import DETECTORS, METRICS, aupr, auroc, evaluate, fpr95
from mixmo.metrics.logits import LabelledLogits
from mixmo.models import multiply_adds
from mixmo.runs.environment import environment
from mixmo.storage.files import atomic_write
from mixmo.utils.errors import UserError

LEVELS = (0.8, 0.9, 0.95)
RISKS = (0.02, 0.05, 0.1)
SPLITS = 20
OUTSIDE = ("cifar10", "tiny-imagenet", "noise")
Found = dict[str, Any]


def main() -> None:
    into = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    into.add_argument("models", nargs="+", type=Path, help="run directories, saved networks or shipped names")
    into.add_argument("--data", type=Path, help="folder of the data sets")
    into.add_argument("--out", type=Path, required=True, help="JSON file of all scores")
    into.add_argument("--images", type=int, help="images of each data set; all by default")
    into.add_argument("--corrupted", type=int, help="test images under each corruption and severity; all by default")
    into.add_argument("--which", choices=("last", "best"), default="last", help="epoch of runs")
    into.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = into.parse_args()
    device = torch.device(given.device)
    models = open_models(given.models, given.which, device)
    said = {
        "models": [str(path) for path in given.models],
        "which": given.which,
        "images": given.images,
        "corrupted": given.corrupted,
    }
    found: Found = json.loads(given.out.read_text()) if given.out.exists() else {**said, **environment(device)}
    if {name: found[name] for name in said} != said:
        raise SystemExit(f"{given.out} has scores of {found['models']}; give another --out")
    everything = dataset_images(models[0], None, given.data, device)
    images = some(everything, given.images, seed=0)
    clean = timed(models, images)
    found["clean"] = {"images": len(images), **evaluate(*clean[0]).to_dict()}
    parts: dict[str, Callable[[], Found]] = {
        **{f"corrupted {n}": partial(corrupted, models, everything, n, given.corrupted) for n in sorted(CORRUPTIONS)},
        **{f"ood {n}": partial(outside, models, clean[0].logits, n, given.data, given.images) for n in OUTSIDE},
        "calibration": partial(calibrated, *clean[0]),
        "multiplexed": partial(multiplexed, models, images, clean[1]),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for name, measure in parts.items():
        if name in found:
            continue
        try:
            found[name] = measure()
        except UserError as error:  # a data set that is not there
            print(f"{name} left out: {error}", flush=True)
            continue
        print(name, json.dumps(found[name])[:300], flush=True)
        with atomic_write(given.out) as temporary:
            temporary.write_text(json.dumps(found, indent=1) + "\n")


def some(images: SplitImages, count: int | None, seed: int) -> SplitImages:
    """Draw `count` of the images at random; all of them without."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count]
    return SplitImages(Split(images.split.resident[order], images.split.labels[order]), images.classes)


def timed(models: Sequence[Model], images: SplitImages, count: int = 1) -> tuple[LabelledLogits, float]:
    """Return the logits of all images with `count` of them per pass, and images/s."""
    predict_images(models, some(images, 100, seed=0), "warming up", count)
    began = time.perf_counter()
    logits = predict_images(models, images, f"{count} per pass", count)
    return logits, len(images) / (time.perf_counter() - began)


def calibrated(logits_MNK: Tensor, labels_N: Tensor) -> Found:
    """Temperature, prediction sets and selective prediction: means over splits."""
    halves = [halved(len(labels_N), seed) for seed in range(SPLITS)]
    temperature, *scores = mean_of(tempered(logits_MNK, labels_N, *half) for half in halves)
    found: Found = {
        "temperature": temperature,
        **dict(zip(("nll", "nll_after", "ece", "ece_after"), scores, strict=True)),
    }
    for method in CONFORMAL:
        for randomised in (False,) if method == "lac" else (False, True):
            for level in LEVELS:
                settings = {"method": method, "level": level, "randomised": randomised, "risk": None}
                covered, size = mean_of(sets(logits_MNK, labels_N, *half, settings) for half in halves)
                name = f"{method}{', randomised' if randomised else ''} {level}"
                found[name] = {"coverage": covered, "classes": size}
    for risk in RISKS:
        share, wrong, kept = mean_of(answers(logits_MNK, labels_N, *half, risk) for half in halves)
        found[f"risk {risk}"] = {"coverage": share, "error_rate": wrong, "splits_kept": round(kept * SPLITS)}
    return found


def halved(count: int, seed: int) -> tuple[Tensor, Tensor]:
    first, second = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).chunk(2)
    return first, second


def mean_of(rows: Iterable[list[float]]) -> list[float]:
    return torch.tensor(list(rows), dtype=torch.float64).mean(0).tolist()


def sets(logits_MNK: Tensor, labels_N: Tensor, fit: Tensor, test: Tensor, settings: dict[str, Any]) -> list[float]:
    """Share of sets that hold the true class, and how many classes a set has."""
    torch.manual_seed(0)  # of randomised sets
    fitted = calibrate(logits_MNK[:, fit], labels_N[fit], **settings)
    inside_NK = Prediction(logits_MNK[:, test], fitted).sets
    covered = inside_NK.gather(1, labels_N[test][:, None]).double().mean().item()
    return [covered, inside_NK.sum(1).double().mean().item()]


def answers(logits_MNK: Tensor, labels_N: Tensor, fit: Tensor, test: Tensor, risk: float) -> list[float]:
    """Coverage, error rate of what is covered, and whether it is within the risk."""
    prediction = Prediction(logits_MNK[:, test], calibrate(logits_MNK[:, fit], labels_N[fit], risk=risk))
    wrong = (prediction.labels != labels_N[test])[~prediction.abstain].double()
    share = wrong.mean().item() if len(wrong) else 0.0
    return [len(wrong) / len(test), share, float(share <= risk)]


def tempered(logits_MNK: Tensor, labels_N: Tensor, fit: Tensor, test: Tensor) -> list[float]:
    """The temperature, then NLL and ECE before and after it."""
    temperature = calibrate(logits_MNK[:, fit], labels_N[fit], risk=None).temperature
    mean_NK, truth = logits_MNK[:, test].double().mean(0), labels_N[test]
    scores = [METRICS[name](z, truth).item() for name in ("nll", "ece") for z in (mean_NK, mean_NK / temperature)]
    return [temperature, *scores]


def multiplexed(models: Sequence[Model], images: SplitImages, rate: float) -> Found:
    """Scores and images/s with 1, 2, ... M images per pass; in random order, so that classes are mixed."""
    cost = sum(multiply_adds(model.net, model.about.size) for model in models)
    found: Found = {"1": {"images_per_second": rate, "multiply_adds": cost}}
    for count in range(2, models[0].net.members + 1):
        logits, rate = timed(models, images.shuffled(), count)
        scores = evaluate(*logits).to_dict()["ensemble"]
        found[str(count)] = {"images_per_second": rate, "multiply_adds": cost / count, **scores}
    return found


def outside(models: Sequence[Model], inside_MNK: Tensor, name: str, root: Path | None, count: int | None) -> Found:
    """OOD detection of another data set, or of uniform noise: every detector's AUROC, AUPR and FPR95."""
    channels, height, width = models[0].about.size
    if name == "noise":
        noise = torch.randint(256, (1000, height, width, channels), generator=torch.Generator().manual_seed(0))
        split = Split(noise.to(torch.uint8), torch.zeros(len(noise), dtype=torch.long))
    else:
        split = data.load(name, root, train=False).test
    split = some(SplitImages(split), count, seed=0).split
    outside_MNK, _ = predict_images(models, SplitImages(split), f"predicting {name}")
    return {"images": len(split.labels)} | {
        detector: detection(DETECTORS[detector](inside_MNK), DETECTORS[detector](outside_MNK)) for detector in DETECTORS
    }


def detection(inside_N: Tensor, outside_N: Tensor) -> Found:
    measures = {"auroc": auroc, "aupr": aupr, "fpr95": fpr95}
    return {name: measure(inside_N, outside_N).item() for name, measure in measures.items()}


def corrupted(models: Sequence[Model], images: SplitImages, name: str, count: int | None) -> Found:
    """Top1, Top5 and NLL under a corruption, by severity, without temperature; every severity has its own images."""
    found: Found = {}
    for severity in SEVERITIES:
        seed = severity + len(SEVERITIES) * sorted(CORRUPTIONS).index(name)
        chosen = some(images, count, seed)
        generator = torch.Generator(chosen.split.resident.device).manual_seed(seed)
        changed = corrupt(chosen.split.resident, name, severity, generator)
        logits = predict_images(models, SplitImages(Split(changed, chosen.split.labels), images.classes), name)
        found[str(severity)] = score(*logits)._asdict()
    return found


if __name__ == "__main__":
    main()
