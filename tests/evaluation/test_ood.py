"""OOD detection: its scores, the images they are computed from, and errors."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score

import mixmo
from helpers import noise
from mixmo.augment.basic import to_shape
from mixmo.data.types import Dataset, Split
from mixmo.engine import Runtime, train
from mixmo.evaluation.robustness import score_ood
from mixmo.inference.predict import predict_split
from mixmo.metrics import DETECTORS
from mixmo.recipes import named
from mixmo.runs.directory import Run
from mixmo.runs.network import load_network
from mixmo.utils.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    root = tmp_path_factory.mktemp("runs")
    small = named("digits/cut-mixmo").replace(width=1, epochs=1, batch_size=128)
    quiet = Runtime(device="cpu", quiet=True)
    return [train(small.replace(seed=seed), root / str(seed), quiet) for seed in (0, 1)]


def paths(runs: list[Run]) -> list[Path]:
    return [run.path for run in runs]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Colour noise as a data set of 30 test images, 16x16."""
    return noise(tmp_path_factory.mktemp("photographs"), {"train": 1, "test": 15}, "ab", (16, 16, 3))


def test_scores_agree_with_scikit_learn(runs: list[Run], photographs: Path, digits: Dataset):
    scores = score_ood(paths(runs), f"folder:{photographs}@16", "last", CPU)
    assert set(scores.detectors) == set(DETECTORS)
    assert (scores.inside, scores.inside_images, scores.outside_images) == ("digits", 360, 30)
    colour = np.stack([np.asarray(Image.open(path)) for path in sorted(photographs.glob("test/*/*.png"))])
    outside = Split(to_shape(torch.from_numpy(colour), 1, 8, 8), torch.zeros(30, dtype=torch.int64))
    logits = [
        torch.cat([predict_split(load_network(run), digits, split).logits for run in runs])
        for split in (digits.test, outside)
    ]
    truth = [0] * 360 + [1] * 30
    for name, found in scores.detectors.items():
        values = torch.cat([DETECTORS[name](part) for part in logits]).numpy()
        assert found.auroc == pytest.approx(roc_auc_score(truth, values), abs=1e-4)
        assert found.aupr == pytest.approx(average_precision_score(truth, values), abs=1e-3)
        threshold = np.sort(values[:360])[341]  # 342 of 360 are 95 %
        assert found.fpr95 == pytest.approx((values[360:] <= threshold).mean(), abs=1e-6)


def test_auroc_of_the_own_test_images_is_one_half(runs: list[Run], tmp_path: Path, digits: Dataset):
    """Its own test images as another data set; also if the network sees their centre."""
    net = mixmo.load(runs[0].path)
    assert net.about is not None
    mixmo.save_pretrained(net, tmp_path / "middle", about=dataclasses.replace(net.about, resize=12))
    for part in ("train", "test"):
        for number, (image, label) in enumerate(zip(digits.test.images, digits.test.labels.tolist(), strict=True)):
            path = tmp_path / "images" / part / str(label) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[..., 0].numpy()).save(path)
    for models in (paths(runs), [tmp_path / "middle"]):
        scores = score_ood(models, f"folder:{tmp_path / 'images'}@8", "last", CPU)
        for found in scores.detectors.values():
            assert found.auroc == pytest.approx(0.5, abs=1e-6)
            assert found.fpr95 >= 0.95


def test_predicted_scores_agree_with_stored_logits(runs: list[Run], photographs: Path):
    name = f"folder:{photographs}@16"
    stored, again = (score_ood(paths(runs), name, "best", CPU, source=source) for source in ("logits", "weights"))
    for detector in DETECTORS:
        assert again.detectors[detector] == pytest.approx(stored.detectors[detector], abs=1e-3)


def test_a_saved_network_scores_as_its_run(runs: list[Run], photographs: Path, tmp_path: Path):
    """Alone, and in an ensemble with a run."""
    mixmo.save_pretrained(mixmo.load(runs[0].path), tmp_path / "saved")
    name = f"folder:{photographs}@16"
    for others in ([], paths(runs[1:])):
        expected = score_ood([runs[0].path, *others], name, "last", CPU)
        found = score_ood([tmp_path / "saved", *others], name, "last", CPU)
        assert found.which == ("last" if others else None)
        for detector in DETECTORS:
            assert found.detectors[detector] == pytest.approx(expected.detectors[detector], abs=1e-3)
        same = {"which": None, "detectors": {}}
        assert found._replace(**same) == expected._replace(**same)


def test_disagreement_of_one_member_detects_nothing(photographs: Path, tmp_path: Path):
    single = named("digits/vanilla").replace(width=1, epochs=1, batch_size=128)
    run = train(single, tmp_path / "run", Runtime(device="cpu", quiet=True))
    found = score_ood([run.path], f"folder:{photographs}@16", "last", CPU).detectors
    assert found["disagreement"].auroc == 0.5
    assert found["entropy"].auroc != 0.5


def test_the_own_data_set_raises_an_error(runs: list[Run]):
    with pytest.raises(UserError, match="trained on"):
        score_ood(paths(runs), "digits", "last", CPU)


def test_the_own_folder_under_another_name_raises_an_error(photographs: Path, tmp_path: Path):
    """At another size, or by another way there."""
    own = f"folder:{photographs}@16"
    recipe = named("cifar10/cut-mixmo").replace(dataset=own, depth=10, width=1, epochs=1, batch_size=2, repetition=1)
    run = train(recipe, tmp_path / "run", Runtime(device="cpu", quiet=True))
    (tmp_path / "link").symlink_to(photographs)
    for path in (f"{photographs}@16", f"{photographs}@8", f"{photographs}", f"{photographs}/test/..@9", "link@32"):
        with pytest.raises(UserError, match="trained on"):
            score_ood([run.path], f"folder:{path}", "last", CPU, root=tmp_path)


def test_an_unknown_data_set_raises_an_error(runs: list[Run]):
    with pytest.raises(UserError, match="cifar10"):
        score_ood(paths(runs), "cifar", "last", CPU)
