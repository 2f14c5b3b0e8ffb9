"""A finished run as a network that comes with the package: weights in bfloat16, config.json, model card, sample images.

    PYTHONPATH=src python benchmarks/ship.py RUN cifar100/cut-mixmo-wrn28-4 --data DATA --samples 3

Writes src/mixmo/hub/weights/NAME, which `mixmo.load(NAME)` then finds. With --data, the scores are measured with the
weights as they are saved, in float32 (WRN-28-4 on CIFAR-100: 4.4 minutes of one core); without, they are of the
run's logits. With --samples n, the first test images that are classified rightly, of n different classes, go to
tests/samples.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from huggingface_hub import ModelCard
from PIL import Image
from torch import Tensor

import mixmo
from mixmo import data
from mixmo.calibration.posthoc import Calibration
from mixmo.hub import Origin
from mixmo.hub.config import WEIGHTS
from mixmo.hub.folder import CARD, rounded
from mixmo.inference.predict import predict_split
from mixmo.metrics import evaluate
from mixmo.metrics.report import Report, Scores
from mixmo.metrics.temperature import random_halves
from mixmo.runs.contents import SCORES
from mixmo.runs.directory import Run

HERE = Path(__file__).resolve().parents[1]
LARGEST = 16e6  # bytes of weights
FIRST = 1_000  # test images whose Top1 is kept apart
SPLITS = 20
CALIBRATED = (
    "The training held out no validation images, so these are the test images: no score on them can judge this "
    "calibration. Fitted on a random half of them and scored on the other, mean over {splits} splits: coverage of the "
    "sets {coverage:.1f} %, {size:.2f} classes per set; {predicted:.1f} % of the images are predicted, with an error "
    "rate of {error:.1f} %. The scores above do not use this calibration."
)
USE = (
    "For research on ensembles and uncertainty, as a baseline, as a start for fine-tuning, and to try the package. It "
    "knows the {classes} classes of {dataset} and nothing else: every image gets one of them, and {size} pixels are "
    "all that it sees of it. High `entropy`, `mutual_information` and `energy` point to images unlike those trained "
    "on, without any promise. {chosen} It was not tested for bias or for any decision about people: do not use it for "
    "one. Its conformal sets and abstention hold for images like those of {dataset}; for others, calibrate it on your "
    "own images (`mixmo predict --calibrate-on`)."
)
CHOSEN = {
    "last": "It is of the last epoch: none was chosen by its scores.",
    "test": "Its epoch was chosen by its Top1 on the test set, as in the paper, so its scores are a little too good.",
    "validation": "Its epoch was chosen by its Top1 on held-out training images.",
}
DATA = {
    "cifar100": "They were trained on the 50,000 training images of CIFAR-100 (A. Krizhevsky, Learning Multiple Layers "
    "of Features from Tiny Images, 2009): photographs from the web, distributed for research without a licence of "
    "their own. No image is in this folder.",
}


def main(arguments: list[str] | None = None) -> None:
    into = parser()
    given = into.parse_args(arguments)
    run, folder = Run.open(given.run), given.out / given.name
    if folder.exists():
        into.error(f"{folder} exists already; remove it first")
    if given.samples and given.data is None:
        into.error("--samples needs --data, where the images are")
    trained = mixmo.load(run.path, given.which)
    net, known = rounded(trained), trained.about
    assert known is not None  # of a run, all is
    if given.data is None:
        logits_MNK, labels_N = run.read_logits(given.which)
        how = "on the logits that the training stored"
    else:
        dataset = data.load(run.recipe.dataset, given.data, torch.device(given.device), train=False)
        answers = predict_split(net.to(given.device), dataset, dataset.test, size=run.recipe.size)
        logits_MNK, labels_N = answers.logits.cpu(), answers.labels.cpu()
        how = f"with the weights of this folder, in float32 on {'a CPU' if given.device == 'cpu' else given.device}"
    report = evaluate(logits_MNK, labels_N)
    calibration, remark = calibrated(known, logits_MNK, labels_N)
    origin = describe(run, given.which, report, how, (logits_MNK.mean(0).argmax(-1) == labels_N), remark)
    about = replace(known, scores=numbers(report.ensemble), calibration=calibration)
    mixmo.save_pretrained(trained, folder, about=about, name=given.name, origin=origin, half=True)
    add_remarks(folder / CARD, run, given.which, about)
    check(folder, net)
    print(f"{folder}: {(folder / WEIGHTS).stat().st_size / 1e6:.2f} MB, {about.scores}, {about.calibration}")
    if given.samples:
        write_samples(dataset.test, logits_MNK, dataset.classes, given.samples, given.samples_to)


def parser() -> argparse.ArgumentParser:
    into = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    into.add_argument("run", type=Path, help="finished run directory")
    into.add_argument("name", help="DATASET/NAME, by which mixmo.load shall know it")
    into.add_argument("--which", choices=("last", "best"), default="last", help="epoch of the weights")
    into.add_argument("--data", type=Path, help="folder of the data sets, to measure the rounded weights")
    into.add_argument("--device", default="cpu", help="where to measure")
    into.add_argument("--samples", type=int, default=0, help="sample images to write")
    into.add_argument("--samples-to", type=Path, default=HERE / "tests" / "samples")
    into.add_argument("--out", type=Path, default=HERE / "src" / "mixmo" / "shipped", help="folder of shipped networks")
    return into


def numbers(scores: Scores) -> dict[str, float]:
    return {key: getattr(scores, key) for key in SCORES}


def calibrated(about: mixmo.About, logits_MNK: Tensor, labels_N: Tensor) -> tuple[Calibration, str | None]:
    """That of the validation images; if none were held out, that of the test images, with its scores on halves."""
    if about.calibration is not None:
        return about.calibration, None
    splits = torch.tensor([scored(logits_MNK, labels_N, *random_halves(len(labels_N), seed)) for seed in range(SPLITS)])
    coverage, size, predicted, error = splits.double().mean(0).tolist()
    remark = CALIBRATED.format(
        splits=SPLITS, coverage=100 * coverage, size=size, predicted=100 * predicted, error=100 * error
    )
    return mixmo.calibrate(logits_MNK, labels_N), remark


def scored(logits_MNK: Tensor, labels_N: Tensor, half: Tensor, other: Tensor) -> tuple[float, float, float, float]:
    """Coverage and size of the sets, share of predicted images and their error rate, fitted to half of the images."""
    fitted = mixmo.calibrate(logits_MNK[:, half], labels_N[half])
    prediction, labels_O = mixmo.Prediction(logits_MNK[:, other], fitted), labels_N[other]
    inside_O = prediction.sets.gather(1, labels_O[:, None]).double()
    wrong_O, predicted_O = prediction.labels != labels_O, ~prediction.abstain
    error = (wrong_O & predicted_O).sum().item() / max(1, int(predicted_O.sum()))
    size = prediction.sets.sum(1).double().mean().item()
    return inside_O.mean().item(), size, predicted_O.double().mean().item(), error


def describe(run: Run, which: str, report: Report, how: str, right_N: Tensor, remark: str | None) -> Origin:
    scores, environment = run.read_scores(), run.read_environment()
    best = f"epoch {scores['best_epoch']} of {run.recipe.epochs}, the best by its {scores['best_by']} Top1"
    return Origin(
        recipe=run.recipe.to_dict(),
        epoch="the last epoch" if which == "last" else best,
        device=environment["device_name"],
        torch=environment["torch"],
        minutes=scores["seconds"] / 60 if "seconds" in scores else None,
        parameters=scores["parameters"],
        multiply_adds=scores["multiply_adds"],
        measured=f"{how}, on {len(right_N):,} test images",
        members=tuple(numbers(member) for member in report.members),
        calibration=remark,
        first={"images": len(right_N[:FIRST]), "top1": right_N[:FIRST].double().mean().item()},
    )


def add_remarks(path: Path, run: Run, which: str, about: mixmo.About) -> None:
    """Use, limits, licence and data, which only the maker of a network knows."""
    assert about.classes is not None
    assert about.dataset is not None
    card = ModelCard.load(path)
    card.data.license = "mit"
    card.data.datasets = [about.dataset]
    chosen = CHOSEN[which if which == "last" else run.read_scores()["best_by"]]
    size = f"{about.size[1]} x {about.size[2]}"
    use = USE.format(classes=len(about.classes), dataset=about.dataset, size=size, chosen=chosen)
    source = DATA.get(about.dataset, f"They were trained on {about.dataset}.")
    card.text += f"\n## Intended use and limits\n{use}\n"
    card.text += f"\n## Licence and data\nThe weights are under the licence of mixmo, MIT. {source}\n"
    card.save(path)


def check(folder: Path, net: mixmo.Ensemble) -> None:
    """What is in the folder is what was measured, and small enough."""
    size = (folder / WEIGHTS).stat().st_size
    if size >= LARGEST:
        raise SystemExit(
            f"{folder / WEIGHTS} has {size / 1e6:.1f} MB, and should stay below {LARGEST / 1e6:.0f}; remove it"
        )
    again, measured = mixmo.load(folder), net.cpu().state_dict()
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, measured[name]), name


def write_samples(test: mixmo.Split, logits_MNK: Tensor, classes: tuple[str, ...], count: int, into: Path) -> None:
    """The first images that are classified rightly, of different classes, each under the name of its class."""
    into.mkdir(parents=True, exist_ok=True)
    labels_N, written = test.labels.cpu(), set[str]()
    for number in (logits_MNK.mean(0).argmax(-1) == labels_N).nonzero()[:, 0].tolist():
        name = classes[labels_N[number]]
        if name not in written and len(written) < count:
            pixels = test.resident[number].cpu().numpy()
            Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(into / f"{name}.png")
            written.add(name)
    print(f"{into}: {', '.join(sorted(written))}")


if __name__ == "__main__":
    main()
