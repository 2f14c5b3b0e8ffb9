"""The JSON of `mixmo eval` is exact: every key in its order, every value as the library computes it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mixmo
from helpers import noise
from mixmo import data
from mixmo.calibration.posthoc import Calibration, calibrate
from mixmo.cli.app import main
from mixmo.data.types import Dataset, Split
from mixmo.evaluation import multiplex
from mixmo.evaluation.images import LabelledImages, SplitImages
from mixmo.evaluation.models import open_models
from mixmo.evaluation.pipeline import predict_images
from mixmo.metrics import DETECTORS, METRICS, Diversity, Report, Scores, aupr, auroc, evaluate, fpr95
from mixmo.metrics.logits import LabelledLogits
from mixmo.reproduce import corruption, scores
from mixmo.runs.directory import Run

CPU = torch.device("cpu")
KEYS = ("top1", "top5", "nll", "nllc", "brier", "ece", "ecec", "tace", "auc", "temperatures")
BETWEEN = ("ratio_error", "agreement", "disagreement", "q_statistic", "error_correlation", "kl")
Printed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    def printed(*arguments: object) -> str:
        assert main(["eval", *map(str, arguments), "--json", "--device", "cpu"]) == 0
        return capsys.readouterr().out

    return printed


def text(expected: dict[str, object]) -> str:
    return json.dumps(expected, indent=2, allow_nan=False) + "\n"


def pick(found: Scores | Diversity, keys: tuple[str, ...]) -> dict[str, object]:
    return {key: getattr(found, key) for key in keys}


def plain(report: Report) -> dict[str, object]:
    return {
        "ensemble": pick(report.ensemble, KEYS),
        "members": [pick(member, KEYS) for member in report.members],
        "diversity": report.diversity and pick(report.diversity, BETWEEN),
    }


def three(logits_MNK: torch.Tensor, labels_N: torch.Tensor) -> dict[str, float]:
    mean = logits_MNK.double().mean(0)
    return {name: METRICS[name](mean, labels_N).item() for name in ("top1", "top5", "nll")}


def predicted(path: Path, images: LabelledImages, images_per_pass: int = 1) -> LabelledLogits:
    return predict_images(open_models([path], "last", CPU), images, images_per_pass=images_per_pass)


def cost(runs: list[Run]) -> dict[str, object]:
    stored = [run.read_scores() for run in runs]
    return {key: sum(each[key] for each in stored) for key in ("parameters", "multiply_adds")} | {"best_by": "test"}


def ensemble(runs: list[Run], which: str) -> dict[str, object]:
    parts = [run.read_logits(which) for run in runs]
    return plain(evaluate(torch.cat([part.logits for part in parts]), parts[0].labels))


def test_json_of_one_run(runs: list[Run], printed: Printed) -> None:
    for run in runs:
        best = {"best_epoch": run.read_scores()["best_epoch"]}
        epochs = {which: ensemble([run], which) for which in ("last", "best")}
        expected = {"runs": [str(run.path)], **cost([run]), **best, **epochs}
        assert printed(run.path) == text(expected)
        del expected["best"]
        assert printed(run.path, "--which", "last") == text(expected)


def test_json_of_two_runs_is_that_of_their_ensemble(runs: list[Run], printed: Printed) -> None:
    kept = {**cost(runs), **{which: ensemble(runs, which) for which in ("last", "best")}}
    paths = [run.path for run in runs]
    assert printed(*paths) == text({"runs": [str(path) for path in paths], **kept})
    assert text(scores.ensemble_scores(runs)) == text(kept)


def test_json_of_saved_networks_has_the_scores_of_their_calibration(
    runs: list[Run], digits: Dataset, tmp_path: Path, printed: Printed
) -> None:
    """Whole; with randomised sets; where every image is abstained; with a temperature alone."""
    whole = calibrate(*runs[0].read_logits("last"), level=0.8, risk=0.8)
    assert whole.selective is not None
    never = replace(whole, selective=replace(whole.selective, threshold=2.0))
    random = calibrate(*runs[0].read_logits("last"), level=0.8, risk=0.8, method="aps", randomised=True)
    bare = Calibration(whole.temperature)
    for name, calibration in {"whole": whole, "random": random, "never": never, "bare": bare}.items():
        path = tmp_path / name
        mixmo.save_pretrained(mixmo.load(runs[0].path), path, calibration=calibration)
        logits, labels = predicted(path, SplitImages(digits.test))
        mean, prediction = logits.double().mean(0), mixmo.Prediction(logits, calibration)
        fitted = {key: METRICS[key](mean / whole.temperature, labels).item() for key in ("nll", "ece", "brier")}
        expected = {"models": [str(path)], "on": "digits", "images": 360, **plain(evaluate(logits, labels))}
        expected["temperature"] = {"temperature": whole.temperature, **fitted}
        if name != "bare":
            torch.manual_seed(0)
            held = prediction.sets[torch.arange(360), labels].double().mean().item()
            size = prediction.sets.sum(1).double().mean().item()
            answered = prediction.probs.amax(1) > calibration.selective.threshold
            share, wrong = answered.double().mean().item(), (prediction.labels != labels)[answered]
            expected["conformal"] = {"level": 0.8, "held": held, "size": size}
            mistaken = wrong.double().mean().item() if name != "never" else None
            expected["selective"] = {"risk": 0.8, "share": share, "wrong": mistaken}
        assert printed(path) == text(expected)
    found = json.loads(printed(path, runs[1].path))  # a calibration is that of one network
    assert list(found) == ["models", "on", "images", "ensemble", "members", "diversity"]


def test_json_of_ood_detection(runs: list[Run], tmp_path: Path, printed: Printed) -> None:
    other = f"folder:{noise(tmp_path / 'grey', {'train': 1, 'test': 1}, 'abc', (8, 8))}@8"
    images, labels = data.load(other, train=False).test
    outside = predicted(runs[0].path, SplitImages(Split(images[..., :1], labels))).logits
    detectors = {}
    for name in DETECTORS:
        both = [DETECTORS[name](logits) for logits in (runs[0].read_logits("last").logits, outside)]
        detectors[name] = {score.__name__: score(*both).item() for score in (auroc, aupr, fpr95)}
    counts = {"inside_images": 360, "outside_images": 3}
    found = {"inside": "digits", "outside": other, "which": "last", **counts, "detectors": detectors}
    assert printed(runs[0].path, "--ood", other) == text({"runs": [str(runs[0].path)], "ood": found})


def test_json_of_multiplexed_inference(
    runs: list[Run], digits: Dataset, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock on which the test set takes a second."""
    monkeypatch.setattr(multiplex, "_timed", lambda call: (call(), 1.0))
    order = torch.randperm(360, generator=torch.Generator().manual_seed(0))
    test = SplitImages(Split(digits.test.images[order], digits.test.labels[order]))
    rows = [
        {
            "images_per_pass": count,
            "members_per_image": 2 / count,
            "multiply_adds": runs[0].read_scores()["multiply_adds"] / count,
            "images_per_second": 360.0,
            **pick(evaluate(*predicted(runs[0].path, test, count)).ensemble, KEYS),
        }
        for count in (1, 2)
    ]
    found = {"which": "last", "images": 360, "device": "cpu", "rows": rows}
    assert printed(runs[0].path, "--multiplex") == text({"runs": [str(runs[0].path)], "multiplexed": found})


def test_stored_scores_of_corrupted_digits(runs: list[Run], digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corruption, "corrupted_digits", lambda: digits.test)
    pooled = three(*predicted(runs[0].path, SplitImages(digits.test)))
    found = corruption.corrupted_scores(runs[:1], "last", Path("anywhere"), CPU)
    assert text(found) == text({"images": "digits, corrupted here", "pooled": pooled})
